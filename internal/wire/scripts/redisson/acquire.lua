-- KEYS lock fence queue; ARGV owner ttl clock [stamp]
-- Granted: the first of the owner's 32 tokens. Held: {time left, holder, waiters, 1 where
-- threads wait by RFairLock}. CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, clock, stamp = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or ''
local holder = holding(lock)
local mine = holder == owner -- an earlier reply was lost, or the lock was handed over
local top, refused = mine and tonumber(redis.call('GET', fence) or 0), nil
if mine and top < 32 or not mine and not holder then
  top, refused = block(fence, clock)
  if not top then
    return refused
  end
end
if mine then
  prolong(lock, ttl)
  return top - 31
end
if stamp ~= '' then
  redis.call('ZADD', queue, 'NX', stamp, owner)
  redis.call('PEXPIRE', queue, '60000')
end
if not holder then -- it lapsed, or was freed: the first in the queue has it
  holder = hand(lock, queue, first(queue, owner), owner, math.min(ttl, 1000), '')
  if not holder then
    give(lock, owner, ttl)
    redis.call('ZREM', queue, owner)
    return top - 31
  end
end
return { redis.call('PTTL', lock), holder, redis.call('ZCARD', queue), redis.call('EXISTS', named('redisson_lock_queue', lock)) }
