-- KEYS lock fence queue set; ARGV owner handover least noted why marker
-- Takes the lock from owner, who may still be queued, and must not be the next. Its client is told, and why.
-- 1: done. 0: the lock is not owner's.
local lock, fence, queue, owner = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
if holding(lock) ~= owner then
  return 0
end
-- The command that makes room comes first: a server that is full refuses a script whose
-- first write takes some, and no later one. It changes nothing. A key that is no queue goes: nobody can wait there.
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
