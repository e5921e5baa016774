-- KEYS lock fence queue set; ARGV owner token marker
-- 1: token is the first of the owner's tokens here. 0: the owner does not have the lock, or has later tokens from this
-- node, or the counter is lost.
local holder, given = holding(KEYS[1])
local token, top = tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if holder ~= ARGV[1] or (given or 0) > token or top <= 0 then
  return 0
end
redis.call('SET', KEYS[1], valued(holder, token), 'KEEPTTL')
if top < token + 31 then
  redis.call('SET', KEYS[2], string.format('%.0f', token + 31))
end
return 1
