-- Promises the next 32 tokens and returns the last of them. A counter that is
-- new starts at the client's clock (µs), or at the node's where they differ by
-- more than a second. Numbers are never joined with .., which loses digits.
local function block(fence, clock, keep)
  local top = redis.call('INCRBY', fence, 32)
  if top ~= 32 then
    redis.call('PEXPIRE', fence, keep)
    return top
  end
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local seed = tonumber(clock) or now
  if math.abs(seed - now) > 1000000 then
    seed = now
  end
  redis.call('SET', fence, string.format('%.0f', seed + 31), 'PX', keep)
  return seed + 31
end
