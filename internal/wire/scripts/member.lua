-- The fourth of KEYS is where the node keeps its marker, and the last of ARGV the marker with
-- which the client was admitted here; neither, where the set is one node.
-- UNADMITTED: nothing has changed.
if KEYS[4] and redis.pcall('GET', KEYS[4]) ~= table.remove(ARGV) then
  return redis.error_reply('UNADMITTED its data were lost or replaced since it was let vote')
end
