-- KEYS lock fence queue set; ARGV token handover least noted why marker
-- Takes the lock from the grant that token belongs to, whose owner may still be
-- queued, and must not be the next. Its client is told, and why. 1: done. 0: not its token.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token = tonumber(ARGV[1])
local holder, base = holding(lock)
if not base or token < base or token > base + 31 then
  return 0
end
-- The command that makes room comes first: a server that is full refuses a script whose
-- first write takes some, and no later one.
redis.call('ZREM', queue, holder)
note(lock, queue, holder, ARGV[4])
pass(lock, fence, queue, holder, ARGV[2], ARGV[3], true)
redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(holder, '^[^.]*'), holder .. ' forced ' .. ARGV[5])
return 1
