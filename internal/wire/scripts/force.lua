-- KEYS lock fence queue; ARGV token handover keep
-- Takes the lock from the grant that token belongs to. 1: done. 0: not its token.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token = tonumber(ARGV[1])
local top = redis.call('GET', fence)
if redis.call('EXISTS', lock) == 0 or not top then
  return 0
end
top = tonumber(top)
if token > top or token < top - 31 then
  return 0
end
block(fence, '', ARGV[3])
pass(lock, fence, queue, '', ARGV[2], ARGV[3])
return 1
