-- KEYS lock fence queue; ARGV owner handover least noted why
-- Takes the lock from owner, whose place in the queue goes too: it must not be the next. Notifies its client of the
-- reason why. 1: done. 0: owner does not have the lock.
local lock, fence, queue, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if holding(lock) ~= owner then
  return 0
end
local room = redis.pcall('ZREM', queue, '') -- a first write without effect: see force.lua of the other format
if type(room) == 'table' then
  if not string.find(room.err, 'WRONGTYPE') then
    return room
  end
  redis.call('DEL', queue)
end
local now, gone = millis(), {}
leave(gone, owner)
pass(lock, fence, queue, owner, ARGV[2], true, now, gone)
remove(queue, gone)
redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(owner, '^[^:]*'), owner .. ' forced ' .. ARGV[5])
return 1
