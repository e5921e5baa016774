-- KEYS lock queue, of a lock that nobody has
-- Waits a moment for a command of another connection that sets queue, and then fails on a key that it has written.
-- 'INTERLEAVED': that command was executed in the middle of the script. Otherwise the error, and lock has the written value.
local lock, queue = KEYS[1], KEYS[2]
redis.call('DEL', lock, queue)
for _ = 1, 1000 do
  if redis.call('EXISTS', queue) == 1 then
    return 'INTERLEAVED'
  end
end
redis.call('SET', lock, 'probe', 'PX', '10000')
return redis.call('INCRBY', lock, '1')
