-- KEYS lock fence queue set; ARGV owner [least [stamp [handover [minhold]]]] marker
-- Withdraws the owner from the queue or, with a stamp, keeps its place there; then passes the lock on if the owner has it
-- or, without a stamp, if it is free. With a minhold other than '' the owner's lock stays taken for that time, without an
-- owner.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, least, stamp, minhold = ARGV[1], ARGV[2], ARGV[3] or '', ARGV[5] or ''
local call = redis.call
-- The usual case, as in acquire: the owner has the lock, and nobody waits.
local value = redis.pcall('GET', lock)
local mine = type(value) == 'string' and string.find(value, owner .. ' ', 1, true) == 1
if mine and stamp == '' and minhold == '' and call('ZCARD', queue) == 0 then
  call('DEL', lock)
  return 1
end
