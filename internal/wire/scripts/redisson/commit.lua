-- KEYS lock fence queue; ARGV owner token
-- 1: token is the first of the owner's tokens here. 0: the owner does not have the lock, or later tokens have been
-- promised.
if holding(KEYS[1]) ~= ARGV[1] then
  return 0
end
local highest, top = tonumber(redis.call('GET', KEYS[2]) or 0) or 0, ARGV[2] + 31
if highest <= 0 or highest > top then
  return 0
end
redis.call('SET', KEYS[2], string.format('%.0f', top))
return 1
