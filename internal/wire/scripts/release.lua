-- KEYS lock fence queue; ARGV owner stamp handover keep
-- Withdraws the owner from the queue or, with a stamp, keeps its place there; then
-- passes on the lock if it is the owner's.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, stamp = ARGV[1], ARGV[2]
local mine = redis.call('GET', lock) == owner
if mine and stamp == '' and redis.call('ZCARD', queue) == 0 then -- nobody waits
  redis.call('DEL', lock)
  return 1
end
if stamp == '' then
  redis.call('ZREM', queue, owner)
else
  redis.call('ZADD', queue, 'NX', stamp, owner)
  redis.call('PEXPIRE', queue, 60000)
end
if not mine then
  return 0
end
pass(lock, fence, queue, owner, ARGV[3], ARGV[4])
return 1
