-- KEYS lock fence queue
-- {holder, time left, the first of the tokens promised last, waiters}; changes nothing. A damaged counter gives no token.
-- If the queue cannot be read, its error takes the place of the waiters.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local holder, text = holding(lock), redis.pcall('GET', fence)
local top = type(text) == 'string' and tonumber(text) or 0
if top < 32 or top >= 9007199254740992 or not ours(holder) then
  top = 31 -- nobody has a token
end
return {
  holder or '',
  redis.call('PTTL', lock),
  string.format('%.0f', top - 31),
  redis.pcall('ZCOUNT', queue, '(-1e14', -millis()),
}
