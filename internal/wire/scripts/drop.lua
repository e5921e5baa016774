-- KEYS lock; ARGV value
-- Removes the lock of another library, if it is still the one that was looked at.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
