-- KEYS lock fence queue; ARGV owner [none [stamp [handover [minhold]]]]
-- Withdraws the owner from the queue or, with a stamp, keeps its place there; then passes the lock on if the owner has it
-- or, without a stamp, if it is free. With a minhold other than '' the owner's lock stays taken for that time, without an
-- owner.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, stamp, minhold = ARGV[1], ARGV[3] or '', ARGV[5] or ''
redis.call('ZREM', queue, '') -- a first write without effect: see release.lua
local holder, now, gone = holding(lock), millis(), {}
local mine = holder == owner
if stamp == '' then
  leave(gone, owner)
elseif stand(queue, owner, stamp, now) then
  clear(queue, 0, now, gone)
end
if minhold ~= '' and mine then
  give(lock, owner .. '!', minhold)
elseif minhold == '' and (mine or not holder and stamp == '') then
  pass(lock, fence, queue, owner, ARGV[4] or '1000', stamp == '', now, gone)
end
remove(queue, gone)
return mine and 1 or 0
