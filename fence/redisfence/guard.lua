-- KEYS: guard, then those of write. ARGV: token, id, then those of write.
-- Tokens are compared as text, for a number loses its last digits above 2^53.
local guard, token, id = table.remove(KEYS, 1), table.remove(ARGV, 1), table.remove(ARGV, 1)
local seen = redis.call('HMGET', guard, 'token', 'id')
local highest = seen[1] or '0'
local newer = #token > #highest or (#token == #highest and token > highest)
if not newer and not (token == highest and id == seen[2]) then
  return redis.error_reply('STALE ' .. highest)
end
if newer then redis.call('HSET', guard, 'token', token, 'id', id) end
return write(KEYS, ARGV)
