-- KEYS: guard, then those of write. ARGV: token, owner, then those of write.
-- Tokens are compared as text, for a number loses its last digits above 2^53.
local guard, token, owner = table.remove(KEYS, 1), table.remove(ARGV, 1), table.remove(ARGV, 1)
local seen = redis.call('HMGET', guard, 'token', 'owner')
local highest = seen[1] or '0'
local newer = #token > #highest or (#token == #highest and token > highest)
if not newer and not (token == highest and owner == seen[2]) then
  return redis.error_reply('STALE ' .. highest)
end
if newer then redis.call('HSET', guard, 'token', token, 'owner', owner) end
return write(KEYS, ARGV)
