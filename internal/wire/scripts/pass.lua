-- Hands the lock to head, or the next whose client hears of it, takes it out of the
-- queue and returns it; nothing where nobody does. The lock is its own by the time at
-- which it hears. news follows its id.
local function hand(lock, queue, head, from, handover, news)
  while head do
    redis.call('SET', lock, head, 'PX', handover)
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
local function pass(lock, fence, queue, from, handover, keep, everywhere)
  local head, news = handover ~= '0' and first(queue, from), ''
  local top = head and block(fence, '', keep)
  if top and everywhere then
    news = string.format(' %.0f %s', top - 31, handover)
  end
  head = hand(lock, queue, head, from, handover, news)
  if not (head and top) then
    redis.call('DEL', lock)
  end
end
