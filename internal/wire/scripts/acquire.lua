local left, holder, token = call('PTTL', lock), holding(lock)
if holder == owner then -- an earlier reply was lost, or the lock was handed over
  if not token or least and token < tonumber(least) then -- by a shard that lost later ones
    local base, refused = block(fence, clock, least)
    if not base then
      return refused
    end
    token = base
    call('SET', lock, valued(owner, token), 'KEEPTTL')
  end
  prolong(lock, ttl)
  return token
end
local size = holder and stamp ~= '' and 1 or call('ZCARD', queue) -- 1: there will be a place, whoever has one now
if holder and size == 0 then
  return { left, holder, 0 }
end
local now = millis()
if size > 0 and taken(queue, owner, now) then -- the request is one of before that
  return { left, holder or '', waiting(queue, now) }
end
