-- KEYS lock fence queue; ARGV owner ttl
-- Kept: the number of waiters. -1: another owner has the lock, or it is free: then it was forced in Java, which leaves no
-- trace, and a thread that takes no tokens may have had it since.
if holding(KEYS[1]) ~= ARGV[1] then
  return -1
end
prolong(KEYS[1], ARGV[2])
local size = redis.pcall('ZCARD', KEYS[3]) -- an unreadable queue ends no lease
return type(size) == 'number' and size > 0 and waiting(KEYS[3], millis()) or 0
