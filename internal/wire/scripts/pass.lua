-- Hands the lock to head, or the next whose client hears of it, takes it out of the
-- queue and returns it; nothing where nobody does. The lock is its own by the time at
-- which it hears. news follows its id.
local function hand(lock, queue, head, from, handover, base, news)
  while head do
    redis.call('SET', lock, valued(head, base), 'PX', handover)
    local channel = 'holdfast:wake:' .. string.match(head, '^[^.]*')
    local heard = redis.pcall('PUBLISH', channel, head .. news)
    if type(heard) == 'table' then
      return -- no right to publish: the waiters poll
    end
    redis.call('ZREM', queue, head)
    if heard > 0 and listened(channel) then
      return head
    end
    head = first(queue, from)
  end
end

-- Hands the lock over, or frees it: always where handover is 0. Where all nodes are told to, the waiter hears what
-- it has: the first of its tokens, and for how many ms. No client's clock is at hand to
-- start a counter by: where it is new the lock is free, and who was woken takes it by
-- its own.
local function pass(lock, fence, queue, from, handover, least, everywhere)
  local head, news = handover ~= '0' and first(queue, from), ''
  local base = head and block(fence, '', least)
  if base and everywhere then
    news = string.format(' %.0f %s', base, handover)
  end
  head = hand(lock, queue, head, from, handover, base or 0, news)
  if not (head and base) then
    redis.call('DEL', lock)
  end
end
