-- Returns the last token of the first block of a new counter (µs): the client's clock, or the node's if they differ by
-- more than a second. If they differ by more than a minute the counter does not start: a clock that jumped may have
-- made it new (trace C5).
local function seed(clock)
  local t = redis.call('TIME')
  local now, start = t[1] * 1000000 + t[2], tonumber(clock) or 0
  local ahead = now - start
  if math.abs(ahead) > 60000000 then
    return nil, redis.error_reply(string.format(
      "CLOCK the node's clock is %.0f s %s the client's, and a counter of tokens must not start there: synchronise the clocks",
      math.abs(ahead) / 1000000, ahead > 0 and 'ahead of' or 'behind'))
  end
  if math.abs(ahead) > 1000000 then
    start = now
  end
  return start
end
