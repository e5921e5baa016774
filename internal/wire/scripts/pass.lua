-- Hands the lock over, or frees it, which it always does if handover is 0. If the holder releases on all nodes, the
-- message has the first of the waiter's tokens, and the time left in ms. No client's clock is at hand to start a counter:
-- if the counter is new the lock becomes free, and the woken waiter takes it by its own clock.
local function pass(lock, fence, queue, from, handover, least, everywhere, now, gone)
  local base
  local head = handover ~= '0' and wake(queue, from, now, gone, function()
    base = block(fence, '', least)
    if not base then -- perhaps because memory is full: the server accepts writes after one that needs none
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
