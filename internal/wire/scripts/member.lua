-- The last of ARGV is the marker with which the client was admitted here, and the last of
-- KEYS where the node keeps its own; '', and no such key, where the set is one node.
-- UNADMITTED: nothing has changed.
if ARGV[#ARGV] ~= '' and redis.call('GET', KEYS[#KEYS]) ~= ARGV[#ARGV] then
  return redis.error_reply('UNADMITTED its data were lost or replaced since it was let vote')
end
