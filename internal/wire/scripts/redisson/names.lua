-- Returns Redisson's name of a key beside a lock: a name with a brace gets no further braces.
local function named(what, lock)
  if string.find(lock, '{', 1, true) then
    return what .. ':' .. lock
  end
  return what .. ':{' .. lock .. '}'
end

-- Returns the holder of the lock; false: the lock is free. A lock of Redisson is a hash with one field: the holding thread,
-- CLIENT:THREAD, and how often it has taken the lock. Any other key has the name of its type: another hash, such as a
-- read-write lock, is '(hash)'.
local function holding(lock)
  local fields = redis.pcall('HLEN', lock)
  if type(fields) == 'table' then
    if not string.find(fields.err, 'WRONGTYPE') then
      return redis.call('HLEN', lock) -- stops the script
    end
    return '(' .. (redis.pcall('TYPE', lock).ok or 'other') .. ')' -- the right to TYPE is optional
  end
  local holder = fields == 1 and redis.call('HKEYS', lock)[1]
  if fields == 0 or holder and string.find(holder, '^' .. string.rep('[%x-]', 36) .. ':%d') then
    return holder
  end
  return '(hash)'
end

-- Reports whether the holder is a client of Holdfast that has not released the lock: these are UUIDs of version 8, and
-- Redisson's of version 4.
local function ours(holder)
  return holder and string.sub(holder, 15, 15) == '8' and string.sub(holder, -1) ~= '!'
end

-- Sets the lock to owner. The caller knows the present holder, if there is one.
local function give(lock, owner, ttl)
  redis.call('DEL', lock)
  redis.call('HINCRBY', lock, owner, 1)
  redis.call('PEXPIRE', lock, ttl)
end
