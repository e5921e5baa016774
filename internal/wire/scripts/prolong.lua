-- Keeps the lock for ttl from now on, or for its time left, whichever is longer. A connection that is gone may still
-- execute a request long after a later one, and must not shorten the later promise.
local function prolong(lock, ttl)
  if redis.call('PTTL', lock) < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
end
