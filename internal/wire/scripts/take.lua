-- KEYS lock fence queue set; ARGV owner ttl clock [stamp [keep]] marker
-- Granted: the first of the owner's 32 tokens. Held: {time left, holder, waiters}.
-- CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, clock, stamp, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or '', ARGV[5] or '150000'
local call = redis.call
-- The usual case stands before the functions that the others call: to make those takes
-- Lua as long as a command. A free lock for which nobody waits becomes the owner's.
local free = call('SET', lock, owner, 'NX', 'PX', ttl)
local top
if free then
  if not call('SET', fence, clock, 'NX', 'PX', keep) then
    top = call('INCRBY', fence, '32')
    call('PEXPIRE', fence, keep)
  else -- the counter is new, and stays where the two clocks agree to a second
    local t = call('TIME')
    top = tonumber(clock) or 0
    if math.abs(t[1] * 1000000 + t[2] - top) > 1000000 then
      call('DEL', fence)
      top = nil
    end
  end
  if top and call('ZCARD', queue) == 0 then
    return top - 31
  end
end
