-- KEYS lock fence queue
-- {holder, time left, the first of its tokens, waiters}; changes nothing. If the queue cannot be read, its error takes
-- the place of the waiters: the lock may be held all the same.
local lock, queue = KEYS[1], KEYS[3]
local holder, token = holding(lock)
return {
  holder or '',
  redis.call('PTTL', lock),
  string.format('%.0f', token or 0),
  redis.pcall('ZCOUNT', queue, '(-1e14', -millis()),
}
