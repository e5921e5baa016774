-- KEYS lock fence queue set; ARGV owner ttl top clock keep marker
-- Kept: the number of waiters. -1: another holds the lock or, where top is '', nobody.
-- Below: it is free, but a newer grant has been; the counter with a minus. CLOCK: nothing
-- has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, top, clock, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local holder = holding(lock)
if holder == owner then
  prolong(lock, ttl)
  redis.call('PEXPIRE', fence, keep)
  return redis.call('ZCARD', queue)
end
if holder or top == '' then
  return -1
end
local highest = redis.call('GET', fence)
if highest and tonumber(highest) > tonumber(top) then
  return -tonumber(highest)
end
if not highest then -- what was granted meanwhile is below the clock
  local start, refused = seed(clock)
  if not start then
    return refused
  end
  if start > tonumber(top) then
    top = string.format('%.0f', start)
  end
end
redis.call('SET', fence, top, 'PX', keep)
redis.call('SET', lock, owner, 'PX', ttl)
return redis.call('ZCARD', queue)
