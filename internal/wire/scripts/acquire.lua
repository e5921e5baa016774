local now, left, holder, token = millis(), call('PTTL', lock), holding(lock)
if taken(queue, owner, now) then -- the request is one of before that
  return { left, holder or '', waiting(queue, now) }
end
local base, refused
if not holder then
  base, refused = block(fence, clock, least)
  if not base then
    return refused
  end
elseif holder == owner then -- an earlier reply was lost, or the lock was handed over
  if not token or least and token < tonumber(least) then -- by a shard that lost later ones
    token, refused = block(fence, clock, least)
    if not token then
      return refused
    end
    call('SET', lock, valued(owner, token), 'KEEPTTL')
  end
  prolong(lock, ttl)
  return token
end
local gone = {}
if stamp ~= '' and (holder or call('ZCARD', queue) > 0) then
  stand(queue, owner, stamp, now, gone)
end
local count = waiting(queue, now)
if not holder then -- it lapsed, or was given back: the first in the queue has it
  holder = wake(queue, owner, now, gone, function() return '' end)
  local to = holder or owner
  left = holder and math.min(ttl, 1000) or ttl
  call('SET', lock, valued(to, base), 'PX', left)
  if not holder then
    leave(gone, owner)
    remove(queue, gone)
    return base
  end
end
remove(queue, gone)
return { left, holder, count - (gone.alive or 0) }
