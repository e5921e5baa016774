-- KEYS lock fence queue, of which lock and queue do not exist; ARGV channel
-- Tries rights. {errors…}, the first of them '' or the error of PUBLISH on the channel, without which waiters poll.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local refused = { '' }
local function try(...)
  local reply = redis.pcall(...)
  local err = type(reply) == 'table' and reply.err
  if not err then
    return
  end
  -- the errors of servers before 7.2, of 7.2, and later; and of a renamed command
  for _, text in ipairs({ 'The user executing the script', 'NOPERM', 'ACL failure', 'nknown' }) do
    if string.find(err, text) then
      return err
    end
  end
end
local function tried(calls)
  for _, call in ipairs(calls) do
    local err = try(unpack(call))
    if err then
      refused[#refused + 1] = call[1] .. ': ' .. err
    end
  end
  refused[1] = try('PUBLISH', ARGV[1], '') or ''
  return refused
end
