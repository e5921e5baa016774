-- Where the node keeps from whom the lock was taken by force or adoption.
local function forcedOf(queue)
  return (string.gsub(queue, '^holdfast:queue', 'holdfast:forced'))
end

-- Whether the lock was taken from owner by force or adoption, so that no late request brings it back.
local function taken(queue, owner)
  local owners = redis.call('GET', forcedOf(queue))
  return owners and string.find(' ' .. owners .. ' ', ' ' .. owner .. ' ', 1, true)
end

-- Notes that the lock was taken from owner, for ms or as long as the owner had it. At another node the owner may have had it
-- for longer, and trust it still.
local function note(lock, queue, owner, ms)
  local forced = forcedOf(queue)
  local owners, left = redis.call('GET', forced), math.max(redis.call('PTTL', lock), redis.call('PTTL', forced), tonumber(ms), 1)
  if not taken(queue, owner) then
    owners = (owners and owners .. ' ' or '') .. owner
  end
  redis.call('SET', forced, owners, 'PX', left)
end
