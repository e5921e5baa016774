-- KEYS lock fence queue set; ARGV from owner ttl clock keep marker
-- Hands the lock of from on to owner, who knows it. Granted: the first of the owner's 32
-- tokens. Otherwise, if nobody has the lock as well: {time left, holder, waiters}.
-- CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local from, owner, ttl, clock, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local holder = holding(lock)
if holder ~= from and holder ~= owner then
  return { redis.call('PTTL', lock), holder or '', redis.call('ZCARD', queue) }
end
local top = holder == owner and redis.call('GET', fence) -- an earlier reply was lost
if top then
  redis.call('PEXPIRE', fence, keep)
else
  local refused
  top, refused = block(fence, clock, keep)
  if not top then
    return refused
  end
end
if holder == owner then
  prolong(lock, ttl)
else
  redis.call('SET', lock, owner, 'PX', ttl)
end
redis.call('ZREM', queue, from)
return tonumber(top) - 31
