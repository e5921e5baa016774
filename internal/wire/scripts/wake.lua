-- Reports whether a client listens to the channel itself: PUBLISH also counts matching patterns, such as a console's.
-- Without the right to ask, that count has to do.
local function listened(channel)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err ~= nil or reply[2] > 0
end

-- Wakes the first waiter in the queue whose client listens, and returns its id; nothing if no client does, or from comes
-- first. Places before it are removed. news returns the text after the id in the message. Tries the first hundred places,
-- and then the ten that asked last: if the hundred are dead, those live.
local function wake(queue, from, now, gone, news)
  local part, text = 1, nil
  local ids = redis.call('ZRANGEBYSCORE', queue, '(0', '+inf', 'LIMIT', '0', '1')
  while true do
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
    if part == 1 and #ids == 1 then
      part, ids = 2, redis.call('ZRANGEBYSCORE', queue, '(0', '+inf', 'LIMIT', '1', '99')
    elseif part == 2 and #ids == 99 then
      part, ids = 3, redis.call('ZRANGEBYSCORE', queue, '(-1e14', '-' .. decimal(now), 'LIMIT', '0', '10')
    else
      return
    end
  end
end
