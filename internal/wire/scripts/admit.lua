-- KEYS set [counters…]; ARGV old new [floor]
-- Writes what the node shall remember of its admission, if it still remembers old, and raises the
-- counters that it has to floor. 1: done. 0: it remembers something else.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
for i = 2, #KEYS do
  if tonumber(redis.call('GET', KEYS[i]) or ARGV[3]) < ARGV[3] - 1 then
    redis.call('SET', KEYS[i], string.format('%.0f', ARGV[3] - 1))
  end
end
if ARGV[1] ~= ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
