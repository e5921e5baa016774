-- KEYS lock fence queue set; ARGV owner ttl clock [stamp [least]] marker
-- Granted: the first of the owner's 32 tokens. Held: {time left, holder, waiters}.
-- CLOCK: nothing has changed.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl, clock, stamp, least = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or '', ARGV[5]
local call = redis.call
-- The usual case comes before the functions for the others: Lua takes as long to create those as for a command. The
-- owner gets a free lock that nobody waits for.
local present = call('EXISTS', lock, queue)
if present == 0 then
  local top = call('INCRBY', fence, '32')
  local first = top - 31
  if first > 1 and top < 9007199254740992 and not (least and first < tonumber(least)) then
    local low = first % 10000000 -- two integers: %.0f takes half as long as a command
    local text = first == low and string.format('%s %d', owner, low)
      or string.format('%s %d%07d', owner, (first - low) / 10000000, low)
    call('SET', lock, text, 'PX', ttl)
    return first
  end
  call('INCRBY', fence, '-32') -- the counter is new, too low, damaged or at its end: block handles it
end
