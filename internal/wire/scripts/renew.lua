-- KEYS lock [fence queue [set]]; ARGV owner ttl [token] marker
-- Kept: the number of waiters, 0 where the queue is not given. -1: another holds the lock, or nobody does. With a token, and
-- the queue, a lock that is free is set again, and the token is the first of the owner's; but not for an owner from whom
-- it was taken by force or adoption.
local lock, queue = KEYS[1], KEYS[3]
local owner, ttl, token = ARGV[1], ARGV[2], ARGV[3]
local holder = holding(lock)
if holder == owner then
  prolong(lock, ttl)
elseif not holder and token and not taken(queue, owner, millis()) then
  redis.call('SET', lock, valued(owner, tonumber(token)), 'PX', ttl)
else
  return -1
end
local size = queue and redis.pcall('ZCARD', queue) -- a queue that cannot be read ends no lease
return type(size) == 'number' and size > 0 and waiting(queue, millis()) or 0
