-- KEYS lock fence queue; ARGV owner top keep
-- 1: top is the end of the owner's tokens here. 0: the lock is not the owner's,
-- or more has been promised.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
local top = redis.call('GET', KEYS[2])
if top and tonumber(top) > tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
