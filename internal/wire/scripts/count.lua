-- The queue is a sorted set. A waiter has two members there, its place: its id, with the stamp for a score,
-- and the id behind an exclamation mark, with the time (ms since 1970) at which the place lapses, negative.
-- Its client asks again before that. Behind a tilde are the ids from which the lock was taken (taken.lua).
local function millis()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Returns how many wait.
local function waiting(queue, now)
  return redis.call('ZCOUNT', queue, '(-1e14', '-' .. decimal(now))
end
