-- Notes that the lock was taken from owner, for ms or for the rest of the owner's lease here, and not beyond the year
-- 5138. On another node the owner may have the lock for longer, and still trust it. Lapsed notes are removed, some at a
-- time.
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
