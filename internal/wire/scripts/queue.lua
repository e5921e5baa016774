-- While a hash slot moves, no script may touch a missing key: all members leave the queue in one command, the last one.

-- Keeps the queue for at least ms, longer than all its members.
local function lasting(queue, ms)
  if redis.call('PTTL', queue) < ms then
    redis.call('PEXPIRE', queue, ms + 30000)
  end
end

-- Notes in gone that the place of owner is to be removed.
local function leave(gone, owner)
  gone[#gone + 1], gone[#gone + 2], gone[owner] = owner, '!' .. owner, true
end

-- Gives owner a place, or extends its life. Returns whether the place is new: then lapsed places are looked for, so that
-- there are never many. alone: the queue is new, too.
local function stand(queue, owner, stamp, now, alone)
  local new = redis.call('ZADD', queue, stamp, owner, '-' .. decimal(now + 30000), '!' .. owner)
  if alone then
    redis.call('PEXPIRE', queue, '61000')
  else
    lasting(queue, 30000 + 1000)
  end
  return new > 0
end

-- Notes in gone the lapsed places, if the queue has more than count places.
local function clear(queue, count, now, gone)
  if redis.call('ZCARD', queue) > 2 * count then
    for _, mark in ipairs(redis.call('ZRANGEBYSCORE', queue, '(-' .. decimal(now), '(0', 'LIMIT', '0', '100')) do
      leave(gone, string.sub(mark, 2))
    end
  end
end

-- Removes the members in gone from the queue.
local function remove(queue, gone)
  if #gone > 0 then
    redis.call('ZREM', queue, unpack(gone))
  end
end
