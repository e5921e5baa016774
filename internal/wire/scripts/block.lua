-- Promises the next 32 tokens, none below least, and returns the first of them. Otherwise returns nothing and an error
-- reply: the counter is new and must not start, is damaged, or has no tokens left that Lua can represent. A counter
-- below 1 counts as missing. Locks share the counter, and it never expires. Numbers are never joined with .., which
-- loses digits.
local function block(fence, clock, least)
  local top = redis.pcall('INCRBY', fence, '32')
  if type(top) == 'table' then
    return nil, top
  end
  local start, refused = top, nil
  if top <= 32 then
    start, refused = seed(clock)
    if not start then
      redis.call('DEL', fence)
      return nil, refused
    end
  end
  start = math.max(start, (tonumber(least) or 0) + 31)
  if start >= 9007199254740992 then
    redis.call('INCRBY', fence, '-32')
    return nil, redis.error_reply('COUNTER no tokens are left')
  end
  if start ~= top then
    redis.call('SET', fence, string.format('%.0f', start))
  end
  return start - 31
end
