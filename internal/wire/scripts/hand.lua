local base, refused = block(fence, clock, least)
if not base then
  return refused
end
if holder then -- the owner, on a shard that lost its later token
  call('SET', lock, valued(owner, base), 'KEEPTTL')
  prolong(lock, ttl)
  return base
end
local new = stamp ~= '' and size > 0 and stand(queue, owner, stamp, now)
local count = waiting(queue, now)
if new then
  clear(queue, count, now, gone)
end
-- The lock has lapsed, or was given back: the first in the queue gets it.
holder = wake(queue, owner, now, gone, function() return '' end)
if not holder then
  call('SET', lock, valued(owner, base), 'PX', ttl)
  leave(gone, owner)
  remove(queue, gone)
  return base
end
left = math.min(ttl, 1000)
call('SET', lock, valued(holder, base), 'PX', left)
remove(queue, gone)
return { left, holder, count - (gone.alive or 0) }
