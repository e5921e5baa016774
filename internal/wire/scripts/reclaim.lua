-- KEYS lock fence queue set; ARGV owner ttl top keep marker
-- Takes a free lock for who had it before, if no grant has been since the counter was
-- top; its tokens are not the owner's. Kept: the number of waiters. -1: not so.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
if redis.call('GET', fence) ~= ARGV[3] or not redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2]) then
  return -1
end
redis.call('PEXPIRE', fence, ARGV[4])
return redis.call('ZCARD', queue)
