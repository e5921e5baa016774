-- KEYS lock fence queue
-- {holder, time left, highest token, waiters}; changes nothing.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
return {
  holding(lock) or '',
  redis.call('PTTL', lock),
  redis.call('GET', fence) or '0',
  redis.call('ZCARD', queue),
}
