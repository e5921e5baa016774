-- KEYS lock fence queue, none of which is there; ARGV channel
-- Tries every right that the other scripts need, by commands that find nothing to
-- change. {refusals…}, the first of them '' or the refusal of PUBLISH, without which
-- waiters poll.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local refused = { '' }
local function try(...)
  local reply = redis.pcall(...)
  local err = type(reply) == 'table' and reply.err
  if not err then
    return
  end
  -- how servers before 7.2, of 7.2, and later ones refuse; and a command that was renamed
  for _, text in ipairs({ 'The user executing the script', 'NOPERM', 'ACL failure', 'nknown' }) do
    if string.find(err, text) then
      return err
    end
  end
end
for _, call in ipairs({
  { 'SET', lock, 'probe', 'XX' }, { 'GET', lock }, { 'PTTL', lock }, { 'PEXPIRE', lock, 1000 }, { 'DEL', lock },
  { 'INCRBY', fence, 'none' }, { 'SET', fence, 1, 'XX' }, { 'DEL', fence },
  { 'ZADD', queue, 'XX', 1, 'probe' }, { 'PEXPIRE', queue, 1000 }, { 'ZRANGE', queue, 0, 0 }, { 'ZCARD', queue },
  { 'ZREM', queue, 'probe' }, { 'TIME' },
}) do
  local err = try(unpack(call))
  if err then
    refused[#refused + 1] = call[1] .. ': ' .. err
  end
end
refused[1] = try('PUBLISH', ARGV[1], '') or ''
return refused
