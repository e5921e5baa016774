-- Promises the next 32 tokens and returns the last of them; or nothing, and why,
-- where the counter is new and must not start. Numbers are never joined with ..,
-- which loses digits.
local function block(fence, clock, keep)
  local top = redis.call('INCRBY', fence, '32')
  if top ~= 32 then
    redis.call('PEXPIRE', fence, keep)
    return top
  end
  local start, refused = seed(clock)
  if not start then
    redis.call('DEL', fence)
    return nil, refused
  end
  redis.call('SET', fence, string.format('%.0f', start), 'PX', keep)
  return start
end
