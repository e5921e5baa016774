-- KEYS lock fence queue set; ARGV from owner ttl clock noted [least] marker
-- Passes the lock of from to owner. Granted: the first of the owner's 32 tokens. Otherwise, also if the lock is
-- free: {time left, holder, waiters}. CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local from, owner, ttl, clock, noted, least = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local now, gone, holder, token = millis(), {}, holding(lock)
if holder ~= from and holder ~= owner or taken(queue, owner, now) then
  return { redis.call('PTTL', lock), holder or '', waiting(queue, now) }
end
if holder ~= owner or not token or least and token < tonumber(least) then
  local base, refused = block(fence, clock, least)
  if not base then
    return refused
  end
  token = base
  redis.call('SET', lock, valued(owner, token), 'KEEPTTL')
end
if holder == owner then -- an earlier reply was lost
  prolong(lock, ttl)
  note(lock, queue, from, noted, now, gone)
else
  note(lock, queue, from, noted, now, gone)
  redis.call('PEXPIRE', lock, ttl)
end
leave(gone, from)
remove(queue, gone)
return token
