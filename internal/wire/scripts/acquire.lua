local refused
if free and not top then
  top, refused = block(fence, clock, keep)
  if not top then
    redis.call('DEL', lock)
    return refused
  end
  if redis.call('ZCARD', queue) == 0 then
    return top - 31
  end
end
local holder = holding(lock)
if not free and holder == owner then -- an earlier reply was lost, or the lock was handed over
  top = redis.call('GET', fence)
  if not top then
    top, refused = block(fence, clock, keep)
    if not top then
      return refused
    end
  else -- for as long as this client wants: a hand-over went by another's TTL
    redis.call('PEXPIRE', fence, keep)
  end
  prolong(lock, ttl)
  return tonumber(top) - 31
end
if stamp ~= '' then
  redis.call('ZADD', queue, 'NX', stamp, owner)
  redis.call('PEXPIRE', queue, '60000')
end
if free then -- it lapsed, or was given back: the first in the queue has it
  holder = hand(lock, queue, first(queue, owner), owner, math.min(ttl, 1000), '')
  if not holder then
    redis.call('SET', lock, owner, 'PX', ttl)
    redis.call('ZREM', queue, owner)
    return top - 31
  end
end
return { redis.call('PTTL', lock), holder, redis.call('ZCARD', queue) }
