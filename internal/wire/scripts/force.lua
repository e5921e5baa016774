-- KEYS lock fence queue set; ARGV owner handover least noted why marker
-- Takes the lock from owner, whose place in the queue goes too: it must not be the next. Notifies its client of the
-- reason why. 1: done. 0: owner does not have the lock.
local lock, fence, queue, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if holding(lock) ~= owner then
  return 0
end
-- The first write changes nothing and needs no memory: a server with full memory rejects a script whose first write
-- needs some, and accepts later writes. A key that is no queue is deleted: nobody can wait there.
local room = redis.pcall('ZREM', queue, '')
if type(room) == 'table' then
  if not string.find(room.err, 'WRONGTYPE') then
    return room
  end
  redis.call('DEL', queue)
end
local now, gone = millis(), {}
leave(gone, owner)
note(lock, queue, owner, ARGV[4], now, gone)
pass(lock, fence, queue, owner, ARGV[2], ARGV[3], true, now, gone)
remove(queue, gone)
redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(owner, '^[^.]*'), owner .. ' forced ' .. ARGV[5])
return 1
