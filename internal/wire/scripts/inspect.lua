-- KEYS lock fence queue
-- {holder, time left, the first of its tokens, waiters}; changes nothing.
local lock, queue = KEYS[1], KEYS[3]
local holder, token = holding(lock)
return {
  holder or '',
  redis.call('PTTL', lock),
  string.format('%.0f', token or 0),
  waiting(queue, millis()),
}
