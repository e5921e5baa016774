-- Hands the lock to head, or the next whose client hears of it, takes it out of the
-- queue and returns it; nothing where nobody does. news follows its id.
local function hand(lock, queue, head, from, handover, news)
  while head do
    give(lock, head, handover)
    local channel = 'holdfast:wake:' .. string.match(head, '^[^:]*')
    local heard = redis.pcall('PUBLISH', channel, head .. news)
    if type(heard) == 'table' then
      return -- no right to publish there: the waiters poll
    end
    redis.call('ZREM', queue, head)
    if heard > 0 and listened(channel) then
      return head
    end
    head = first(queue, from)
  end
end

-- Hands the lock over, or frees it: always where handover is 0.
local function pass(lock, fence, queue, from, handover, everywhere)
  local head, news = handover ~= '0' and first(queue, from), ''
  local top = head and block(fence, '')
  if top and everywhere then
    news = string.format(' %.0f %s', top - 31, handover)
  end
  head = hand(lock, queue, head, from, handover, news)
  if not (head and top) then
    free(lock)
  end
end
