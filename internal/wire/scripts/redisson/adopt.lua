-- KEYS lock fence queue; ARGV from owner ttl clock noted
-- Passes the lock of from to owner. Granted: the first of the owner's 32 tokens. Otherwise, also if the lock is
-- free: {time left, holder, waiters}. CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local from, owner, ttl, clock = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local holder = holding(lock)
if holder ~= from and holder ~= owner then
  return { redis.call('PTTL', lock), holder or '', waiting(queue, millis()) }
end
local top, refused = holder == owner and (tonumber(redis.call('GET', fence) or 0) or 0), nil -- an earlier reply was lost
if not top or top < 32 or top >= 9007199254740992 then
  top, refused = block(fence, clock)
  if not top then
    return refused
  end
end
if holder == owner then
  prolong(lock, ttl)
else
  give(lock, owner, ttl)
end
redis.call('ZREM', queue, from, '!' .. from)
return top - 31
