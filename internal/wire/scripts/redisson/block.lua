-- Promises the next 32 tokens, with the counter of RFencedLock, and returns the last of them. Otherwise returns nothing and
-- an error reply: the counter is new and must not start, is damaged, or has no tokens left that Lua can
-- represent. It never expires: Java would begin at 1 again. Numbers are never joined with .., which loses digits.
local function block(fence, clock)
  local top = redis.pcall('INCRBY', fence, '32')
  if type(top) == 'table' then
    return nil, top
  end
  if top >= 9007199254740992 then
    redis.call('INCRBY', fence, '-32')
    return nil, redis.error_reply('COUNTER no tokens are left')
  end
  if top > 32 then
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
