-- KEYS lock fence queue; ARGV token handover least noted why
-- Takes the lock from the grant that token belongs to, whose owner may still be
-- queued, and must not be the next. Its client is told, and why. 1: done. 0: not its token.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token = tonumber(ARGV[1])
local holder, top = holding(lock), redis.call('GET', fence)
if not top or not ours(holder) then
  return 0
end
top = tonumber(top)
if top < 32 or token > top or token < top - 31 then
  return 0
end
redis.call('ZREM', queue, holder)
pass(lock, fence, queue, holder, ARGV[2], true)
redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(holder, '^[^:]*'), holder .. ' forced ' .. ARGV[5])
return 1
