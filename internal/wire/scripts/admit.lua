-- KEYS set; ARGV old new
-- Replaces the marker of the node's admission, if it is still old. 1: done. 0: the marker is another one.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
