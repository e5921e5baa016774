-- Promises the next 32 tokens, least at least, and returns the first of them; or nothing, and
-- why, where the counter is new and must not start. Locks share the counter, and it
-- never expires. Numbers are never joined with .., which loses digits.
local function block(fence, clock, least)
  local top = redis.call('INCRBY', fence, '32')
  local start, refused = top, nil
  if top == 32 then
    start, refused = seed(clock)
    if not start then
      redis.call('DEL', fence)
      return nil, refused
    end
  end
  start = math.max(start, (tonumber(least) or 0) + 31)
  if start ~= top then
    redis.call('SET', fence, string.format('%.0f', start))
  end
  return start - 31
end
