-- KEYS lock fence queue
-- {holder, time left, the first of the tokens promised last, waiters}; changes nothing.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local holder, top = holding(lock), tonumber(redis.call('GET', fence) or 0)
if top < 32 or not ours(holder) then
  top = 31 -- nobody has a token
end
return {
  holder or '',
  redis.call('PTTL', lock),
  string.format('%.0f', top - 31),
  waiting(queue, millis()),
}
