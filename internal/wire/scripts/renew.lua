-- KEYS lock fence queue set; ARGV owner ttl [token] marker
-- Kept: the number of waiters. -1: another holds the lock, or nobody does. With a token a lock that
-- is free is set again, and the token is the first of the owner's. What was taken by force or
-- adoption is the owner's no more, also where a late request has brought it back.
local lock, queue = KEYS[1], KEYS[3]
local owner, ttl, token = ARGV[1], ARGV[2], ARGV[3]
local holder = holding(lock)
if (holder == owner or not holder and token) and taken(queue, owner) then
  return -1
elseif holder == owner then
  prolong(lock, ttl)
elseif not holder and token then
  redis.call('SET', lock, valued(owner, token), 'PX', ttl)
else
  return -1
end
return redis.call('ZCARD', queue)
