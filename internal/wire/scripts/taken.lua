-- Reports whether the lock was taken from owner by force or adoption: no late request gives it back then. A note is a
-- member of the queue; its score is minus the sum of 10^14 and the time (ms since 1970) at which it lapses.
local function taken(queue, owner, now)
  local score = redis.call('ZSCORE', queue, '~' .. owner)
  return score and -score - 1e14 >= now
end
