-- Returns the first waiter of RFairLock. Each of them has a deadline, and leaves the queue after it.
local function fair(lock)
  local list, deadlines = named('redisson_lock_queue', lock), named('redisson_lock_timeout', lock)
  local head = redis.call('LINDEX', list, 0)
  if not head then
    return
  end
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  while head and (tonumber(redis.call('ZSCORE', deadlines, head)) or 0) <= now do
    redis.call('ZREM', deadlines, head)
    redis.call('LPOP', list)
    head = redis.call('LINDEX', list, 0)
  end
  return head
end

-- Frees the lock, and wakes waiters as Redisson does: one thread of each of its clients, and the first of RFairLock,
-- which has a channel of its own. Waiters of Holdfast listen to the first channel, too.
local function free(lock)
  redis.call('DEL', lock)
  local channel, head = named('redisson_lock__channel', lock), fair(lock)
  redis.call('PUBLISH', channel, '0')
  if head then
    redis.call('PUBLISH', channel .. ':' .. head, '0')
  end
end
