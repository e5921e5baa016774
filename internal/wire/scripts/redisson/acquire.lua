-- KEYS lock fence queue; ARGV owner ttl clock [stamp]
-- Granted: the first of the owner's 32 tokens. Held: {time left, holder, waiters, 1 if threads wait by RFairLock}.
-- CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, clock, stamp = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or ''
local holder = holding(lock)
local mine = holder == owner -- an earlier reply was lost, or the lock was handed over
local top, refused = mine and (tonumber(redis.call('GET', fence) or 0) or 0), nil
if mine and (top < 32 or top >= 9007199254740992) or not mine and not holder then
  top, refused = block(fence, clock)
  if not top then
    return refused
  end
end
if mine then
  prolong(lock, ttl)
  return top - 31
end
local now, gone = millis(), {}
local new = stamp ~= '' and stand(queue, owner, stamp, now)
local count = waiting(queue, now)
if new then
  clear(queue, count, now, gone)
end
if not holder then -- the lock has lapsed, or was freed: the first in the queue gets it
  holder = wake(queue, owner, now, gone, function() return '' end)
  give(lock, holder or owner, holder and math.min(ttl, 1000) or ttl)
  if not holder then
    leave(gone, owner)
    remove(queue, gone)
    return top - 31
  end
end
remove(queue, gone)
return { redis.call('PTTL', lock), holder, count - (gone.alive or 0), redis.call('EXISTS', named('redisson_lock_queue', lock)) }
