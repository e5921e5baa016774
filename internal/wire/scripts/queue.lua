-- The first in the queue; nothing where from is it, or nobody waits.
local function first(queue, from)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head ~= from then
    return head
  end
end

-- Whether anybody listens to the channel itself: PUBLISH counts patterns that match it
-- as well, such as a console's. Without the right to ask, its count has to do.
local function listened(channel)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err ~= nil or reply[2] > 0
end
