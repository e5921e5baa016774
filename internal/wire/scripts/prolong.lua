-- Lets the lock stand for ttl from now on, or as long as it does. A request may be executed long
-- after a later one, over a connection that has gone, and must not shorten what that has promised.
local function prolong(lock, ttl)
  if redis.call('PTTL', lock) < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
end
