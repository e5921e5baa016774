-- Takes the first waiter whose client hears of it out of the queue and wakes it,
-- unless from is the first of all.
local function first(queue, from)
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head or head == from then
      return
    end
    local heard = redis.pcall('PUBLISH', 'holdfast:wake:' .. string.match(head, '^[^.]*'), head)
    if type(heard) == 'table' then
      return -- no right to publish: the waiters poll
    end
    redis.call('ZREM', queue, head)
    if heard > 0 then
      return head
    end
  end
end

-- Frees the lock, or hands it to the first waiter. No client's clock is at hand to
-- start a new counter by: where it is new the lock is freed, and who was woken takes
-- it by its own.
local function pass(lock, fence, queue, from, handover, keep)
  local head = first(queue, from)
  if head and block(fence, '', keep) then
    redis.call('SET', lock, head, 'PX', handover)
  else
    redis.call('DEL', lock)
  end
end
