local holder = holding(lock)
local mine = holder == owner
if stamp == '' then
  redis.call('ZREM', queue, owner)
else
  redis.call('ZADD', queue, 'NX', stamp, owner)
  redis.call('PEXPIRE', queue, '60000')
end
if minhold ~= '' and mine then
  redis.call('SET', lock, owner .. '!', 'PX', minhold)
elseif minhold == '' and (mine or not holder and stamp == '') then
  pass(lock, fence, queue, owner, ARGV[4] or '1000', least, stamp == '')
end
return mine and 1 or 0
