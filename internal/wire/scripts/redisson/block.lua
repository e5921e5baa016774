-- Promises the next 32 tokens, by the counter of RFencedLock, and returns the last of them; or
-- nothing, and why, where the counter is new and must not start. It never expires: Java would
-- begin at 1 again. Numbers are never joined with .., which loses digits.
local function block(fence, clock)
  local top = redis.call('INCRBY', fence, '32')
  if top ~= 32 then
    return top
  end
  local start, refused = seed(clock)
  if not start then
    redis.call('DEL', fence)
    return nil, refused
  end
  redis.call('SET', fence, string.format('%.0f', start))
  return start
end
