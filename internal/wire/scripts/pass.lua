-- Frees the lock, or hands it to the first waiter whose client hears of it. No
-- client's clock is at hand to start a new counter by: where it is new the lock is
-- freed, and who was woken takes it by its own.
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
      if not block(fence, '', keep) then
        break
      end
      redis.call('SET', lock, head, 'PX', handover)
      return
    end
  end
  redis.call('DEL', lock)
end
