-- The queue is a sorted set. A waiter has two members there, its place: its id, with the stamp for a score,
-- and the id behind an exclamation mark, with the time (ms since 1970) at which the place lapses, negative.
-- Its client asks again before that. Behind a tilde are the ids from which the lock was taken (notes.lua).
-- In a hash slot that is on the move no script may touch a key that is missing: what goes out of the queue goes
-- in one command, the last one.
local function millis()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

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

-- How many wait.
local function waiting(queue, now)
  return redis.call('ZCOUNT', queue, '(-1e14', -now)
end

-- Takes out of the queue what is in gone.
local function remove(queue, gone)
  if #gone > 0 then
    redis.call('ZREM', queue, unpack(gone))
  end
end

-- Whether anybody listens to the channel itself: PUBLISH counts patterns that match it
-- as well, such as a console's. Without the right to ask, its count has to do.
local function listened(channel)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err ~= nil or reply[2] > 0
end

-- Wakes the first in the queue whose client hears, and returns its id; nothing where nobody does, or from is
-- the first. Places before it go. news makes what follows the id in the message. It looks at the first hundred, and
-- then at the ten that asked last: where so many are dead, those are not.
local function wake(queue, from, now, gone, news)
  local text
  for part, range in ipairs({ { '(0', '+inf', 0, 1 }, { '(0', '+inf', 1, 99 }, { '(-1e14', -now, 0, 10 } }) do
    local ids = redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', range[3], range[4])
    for _, id in ipairs(ids) do
      local owner = part == 3 and string.sub(id, 2) or id
      local lapses = not gone[owner] and redis.call('ZSCORE', queue, '!' .. owner)
      if lapses and -lapses >= now then
        if owner == from then
          return
        end
        text = text or news()
        local channel = 'holdfast:wake:' .. string.match(owner, '^[^.:]*')
        local heard = redis.pcall('PUBLISH', channel, owner .. text)
        if type(heard) == 'table' then
          return -- no right to publish: the waiters poll
        end
        leave(gone, owner)
        gone.alive = (gone.alive or 0) + 1
        if heard > 0 and listened(channel) then
          return owner
        end
      elseif not gone[owner] then
        leave(gone, owner)
      end
    end
    if #ids < range[4] then
      return
    end
  end
end
