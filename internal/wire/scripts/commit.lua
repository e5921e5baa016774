-- KEYS lock fence queue set; ARGV owner top keep marker
-- 1: top is the end of the owner's tokens here. 0: the lock is not the owner's,
-- or more has been promised.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
local top = redis.call('GET', KEYS[2])
if top and tonumber(top) > tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
