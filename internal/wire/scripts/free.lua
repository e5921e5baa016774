-- KEYS lock fence queue set; ARGV owner [least [stamp [handover [minhold]]]] marker
-- Withdraws the owner from the queue or, with a stamp, keeps its place there; then
-- passes on the lock if it is the owner's or, without a stamp, nobody's. With a minhold other than
-- '' the owner's lock stands for so long, and is nobody's.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, least, stamp, minhold = ARGV[1], ARGV[2], ARGV[3] or '', ARGV[5] or ''
local call = redis.call
-- The usual case, as in acquire: the lock is the owner's, and nobody waits.
local value = redis.pcall('GET', lock)
local mine = type(value) == 'string' and string.find(value, owner .. ' ', 1, true) == 1
if mine and stamp == '' and minhold == '' and call('ZCARD', queue) == 0 then
  call('DEL', lock)
  return 1
end
