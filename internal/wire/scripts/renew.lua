-- KEYS lock [fence queue [set]]; ARGV owner ttl [token] marker
-- Kept: the number of waiters, 0 without the queue. -1: another owner has the lock, or it is free. With a token and the
-- queue, a free lock is set again with that first token, unless it was taken from the owner by force or adoption.
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
local size = queue and redis.pcall('ZCARD', queue) -- an unreadable queue ends no lease
return type(size) == 'number' and size > 0 and waiting(queue, millis()) or 0
