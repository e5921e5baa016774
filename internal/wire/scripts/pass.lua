-- Frees the lock, or hands it to the first waiter whose client hears of it.
local function pass(lock, fence, queue, from, handover, keep)
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head or head == from then
      break
    end
    local heard = redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(head, '^[^.]*'), head)
    if type(heard) == 'table' then
      break -- no right to publish: the waiters poll
    end
    redis.call('ZREM', queue, head)
    if heard > 0 then
      redis.call('SET', lock, head, 'PX', handover)
      block(fence, '', keep)
      return
    end
  end
  redis.call('DEL', lock)
end
