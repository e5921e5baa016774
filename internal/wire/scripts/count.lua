-- The queue is a sorted set. The place of a waiter has two members: its id, with the stamp for a score, and the id
-- after an exclamation mark, with the time (ms since 1970) at which the place lapses, negative. Its client asks again
-- before that. Ids after a tilde are notes: the lock was taken from them (taken.lua).
local function millis()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Returns the number of waiters.
local function waiting(queue, now)
  return redis.call('ZCOUNT', queue, '(-1e14', '-' .. decimal(now))
end
