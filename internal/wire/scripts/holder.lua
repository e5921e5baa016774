-- Returns the holder of the lock, and the first of its tokens; false: the lock is free. A key that is no lock of this
-- protocol has a name for its holder, and no token: '(hash)', '(list)' … for another type, '(empty)' for an empty value,
-- and the whole value if its number is no token, from 1 to 2^53 - 1. The value may be known already.
local function holding(lock, value)
  if value == nil then
    value = redis.pcall('GET', lock)
  end
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE') then
      return redis.call('GET', lock) -- stops the script
    end
    return '(' .. (redis.pcall('TYPE', lock).ok or 'other') .. ')' -- the right to TYPE is optional
  end
  if not value then
    return false
  end
  local owner, token = string.match(value, '^(%S+) (%d+)$')
  token = tonumber(token)
  if token and token > 0 and token < 9007199254740992 then
    return owner, token
  end
  return value == '' and '(empty)' or value
end

-- The value of a lock: the owner, and the first of its tokens.
local function valued(owner, token)
  return owner .. ' ' .. decimal(token)
end
