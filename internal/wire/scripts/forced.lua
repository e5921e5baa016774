-- Where the node keeps from whom the lock was taken by force or adoption, for as long as they had it.
local function forcedOf(queue)
  return (string.gsub(queue, '^holdfast:queue', 'holdfast:forced'))
end

-- Whether the lock was taken from owner by force or adoption, so that no late request brings it back.
local function taken(queue, owner)
  local owners = redis.call('GET', forcedOf(queue))
  return owners and string.find(' ' .. owners .. ' ', ' ' .. owner .. ' ', 1, true)
end

-- Notes that the lock was taken from owner, for as long as the owner may trust it.
local function note(lock, queue, owner)
  local forced = forcedOf(queue)
  local owners, left = redis.call('GET', forced), math.max(redis.call('PTTL', lock), redis.call('PTTL', forced), 1)
  redis.call('SET', forced, (owners and owners .. ' ' or '') .. owner, 'PX', left)
end
