local left = call('PTTL', lock)
local free, base, refused = left == -2, nil, nil
if free then
  base, refused = block(fence, clock, least)
  if not base then
    return refused
  end
end
local holder, token
if not free then
  holder, token = holding(lock)
end
if holder == owner then -- an earlier reply was lost, or the lock was handed over
  if not token or least and token < tonumber(least) then -- by a shard that lost later ones
    token, refused = block(fence, clock, least)
    if not token then
      return refused
    end
    redis.call('SET', lock, valued(owner, token), 'KEEPTTL')
  end
  prolong(lock, ttl)
  return token
end
if stamp ~= '' and (not free or redis.call('ZCARD', queue) > 0) then
  redis.call('ZADD', queue, 'NX', stamp, owner)
  redis.call('PEXPIRE', queue, '60000')
end
if free then -- it lapsed, or was given back: the first in the queue has it
  holder = hand(lock, queue, first(queue, owner), owner, math.min(ttl, 1000), base, '')
  if not holder then
    redis.call('SET', lock, valued(owner, base), 'PX', ttl)
    redis.call('ZREM', queue, owner)
    return base
  end
end
return { free and call('PTTL', lock) or left, holder, call('ZCARD', queue) }
