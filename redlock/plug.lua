-- KEYS key; ARGV kind owner keep
-- Mends a leak, if it is still the one that was looked at: 1. Leaves anything else as it
-- is: 0. A key gets a TTL, except for the lock of another library, which is deleted, and
-- a place in a queue that nobody listens for.
local key, kind, owner, keep = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if kind == 'waiter' then
  local reply = redis.call('PUBSUB', 'NUMSUB', 'holdfast:wake:' .. string.match(owner, '^[^.:]*'))
  if reply[2] > 0 then
    return 0
  end
  return redis.call('ZREM', key, owner)
end
if redis.call('PTTL', key) ~= -1 then
  return 0
end
if kind == 'lock' then
  if redis.pcall('GET', key) ~= owner then
    return 0
  end
  return redis.call('DEL', key)
end
return redis.call('PEXPIRE', key, keep)
