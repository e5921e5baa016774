-- Notes that the lock was taken from owner, for ms or as long as the owner had it, and not beyond the year 5138. At another
-- node the owner may have had it for longer, and trust it still. Notes that do not count any more go, some at a time.
local function note(lock, queue, owner, ms, now, gone)
  local last = now + math.max(redis.call('PTTL', lock), tonumber(ms), 1)
  local score = redis.call('ZSCORE', queue, '~' .. owner)
  if score then
    last = math.max(last, -score - 1e14)
  end
  last = math.min(last, 1e14)
  redis.call('ZADD', queue, -1e14 - last, '~' .. owner)
  lasting(queue, last - now + 1000)
  for _, mark in ipairs(redis.call('ZRANGEBYSCORE', queue, string.format('(%.0f', -1e14 - now), '-1e14', 'LIMIT', '0', '100')) do
    gone[#gone + 1] = mark
  end
end
