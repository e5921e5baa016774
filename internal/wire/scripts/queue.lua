-- In a hash slot that is on the move no script may touch a key that is missing: what goes out of the queue goes
-- in one command, the last one.

-- Lets the queue stand for ms at least, longer than all that is in it. Returns whether it had less.
local function lasting(queue, ms)
  local less = redis.call('PTTL', queue) < ms
  if less then
    redis.call('PEXPIRE', queue, ms + 30000)
  end
  return less
end

-- Notes in gone that the place of owner is to go.
local function leave(gone, owner)
  gone[#gone + 1], gone[#gone + 2], gone[owner] = owner, '!' .. owner, true
end

-- Gives owner a place, or lets its place stand for longer. Now and then, and for each new place, it looks for places
-- that have lapsed: so there are never many.
local function stand(queue, owner, stamp, now, gone)
  local new = redis.call('ZADD', queue, stamp, owner, -(now + 30000), '!' .. owner)
  if lasting(queue, 30000 + 1000) or new > 0 then
    for _, mark in ipairs(redis.call('ZRANGEBYSCORE', queue, string.format('(%.0f', -now), '(0', 'LIMIT', '0', '100')) do
      leave(gone, string.sub(mark, 2))
    end
  end
end

-- Takes out of the queue what is in gone.
local function remove(queue, gone)
  if #gone > 0 then
    redis.call('ZREM', queue, unpack(gone))
  end
end
