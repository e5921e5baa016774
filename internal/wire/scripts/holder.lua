-- Returns the holder of the lock, and the first of its tokens; false: nobody. What is no lock of ours still has
-- a name, and no token: a key of another type '(hash)', '(list)' …, an empty value '(empty)', and as a whole a value
-- whose number is no token, from 1 to 2^53 - 1. The value may be known already.
local function holding(lock, value)
  if value == nil then
    value = redis.pcall('GET', lock)
  end
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE') then
      return redis.call('GET', lock) -- stops the script
    end
    return '(' .. (redis.pcall('TYPE', lock).ok or 'other') .. ')' -- nobody needs the right to TYPE
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
