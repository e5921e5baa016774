-- Who has the lock; false: nobody. What is no lock of ours still has a name: a key of
-- another type '(hash)', '(list)' …, an empty value '(empty)'.
local function holding(lock)
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then
    if not string.find(value.err, 'WRONGTYPE') then
      return redis.call('GET', lock) -- stops the script
    end
    return '(' .. (redis.pcall('TYPE', lock).ok or 'other') .. ')' -- nobody needs the right to TYPE
  end
  return value == '' and '(empty)' or value
end
