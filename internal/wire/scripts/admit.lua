-- KEYS set; ARGV old new
-- Writes what the node shall remember of its admission, if it still remembers old. 1: done.
-- 0: it remembers something else.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
