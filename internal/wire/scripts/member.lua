-- The fourth of KEYS is the key of the node's marker, and the last of ARGV the marker that the client found at the
-- admission; a set of one node has neither. UNADMITTED: nothing has changed.
if KEYS[4] and redis.pcall('GET', KEYS[4]) ~= table.remove(ARGV) then
  return redis.error_reply('UNADMITTED its data were lost or replaced since it was let vote')
end
