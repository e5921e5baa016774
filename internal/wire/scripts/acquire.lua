local left, holder, token = call('PTTL', lock), holding(lock)
if holder == owner and token and (not least or token >= tonumber(least)) then -- an earlier reply was lost, or the lock was handed over
  prolong(lock, ttl)
  return token
end
local size, now, gone = 0, 0, {}
if holder ~= owner then
  size = holder and stamp ~= '' and 1 or call('ZCARD', queue) -- 1: there will be a place, whoever has one now
  if holder and size == 0 then
    return { left, holder, 0 }
  end
  now = millis()
  if size > 0 and taken(queue, owner, now) then -- the request is one of before that
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
