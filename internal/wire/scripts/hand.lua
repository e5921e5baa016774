local gone, base, refused = {}, nil, nil
if not holder then
  base, refused = block(fence, clock, least)
  if not base then
    return refused
  end
end
if stamp ~= '' and (holder or size > 0) then
  stand(queue, owner, stamp, now, gone)
end
local count = waiting(queue, now)
if not holder then -- it lapsed, or was given back: the first in the queue has it
  holder = wake(queue, owner, now, gone, function() return '' end)
  if not holder then
    call('SET', lock, valued(owner, base), 'PX', ttl)
    leave(gone, owner)
    remove(queue, gone)
    return base
  end
  left = math.min(ttl, 1000)
  call('SET', lock, valued(holder, base), 'PX', left)
end
remove(queue, gone)
return { left, holder, count - (gone.alive or 0) }
