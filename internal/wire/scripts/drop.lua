-- KEYS lock; ARGV value
-- Removes the lock of another library, if its value is still the given one.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
