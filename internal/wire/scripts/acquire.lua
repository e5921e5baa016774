local left, holder, token = call('PTTL', lock), holding(lock)
if holder == owner and token and (not least or token >= tonumber(least)) then -- an earlier reply was lost, or the lock was handed over
  prolong(lock, ttl)
  return token
end
local size, now, gone = 0, 0, {}
if holder ~= owner then
  if holder and present == 1 then -- the queue is new, so there is no note of the owner, and its place is the only one
    if stamp ~= '' then
      stand(queue, owner, stamp, millis(), true)
    end
    return { left, holder, stamp ~= '' and 1 or 0 }
  end
  size = holder and 1 or call('ZCARD', queue) -- 1: another owner waits, or there is a note
  now = millis()
  if size > 0 and taken(queue, owner, now) then -- the request was sent before that
    return { left, holder or '', waiting(queue, now) }
  end
  if holder then
    local new = stamp ~= '' and stand(queue, owner, stamp, now)
    local count = waiting(queue, now)
    if new then
      clear(queue, count, now, gone)
      remove(queue, gone)
    end
    return { left, holder, count }
  end
end
