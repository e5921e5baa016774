-- Hands the lock over, or frees it: always where handover is 0. Where all nodes are told to, the waiter hears what
-- it has: the first of its tokens, and for how many ms. No client's clock is at hand to
-- start a counter by: where it is new the lock is free, and who was woken takes it by
-- its own.
local function pass(lock, fence, queue, from, handover, least, everywhere, now, gone)
  local base
  local head = handover ~= '0' and wake(queue, from, now, gone, function()
    base = block(fence, '', least)
    if not base then -- as the server is full, maybe: it refuses no write after one that takes no room
      redis.call('ZREM', queue, '')
      base = block(fence, '', least)
    end
    return base and everywhere and ' ' .. decimal(base) .. ' ' .. handover or ''
  end)
  if head and base then
    redis.call('SET', lock, valued(head, base), 'PX', handover)
  else
    redis.call('DEL', lock)
  end
end
