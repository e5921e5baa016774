-- Hands the lock over, or frees it, which it always does if handover is 0.
local function pass(lock, fence, queue, from, handover, everywhere, now, gone)
  local top
  local head = handover ~= '0' and wake(queue, from, now, gone, function()
    top = block(fence, '')
    return top and everywhere and string.format(' %.0f %s', top - 31, handover) or ''
  end)
  if head and top then
    give(lock, head, handover)
  else
    free(lock)
  end
end
