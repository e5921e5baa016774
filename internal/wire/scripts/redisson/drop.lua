-- KEYS lock fence queue; ARGV holder
-- Takes the lock from a thread in Java, if it is still the given one, as often as the thread has taken it.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
free(KEYS[1])
return 1
