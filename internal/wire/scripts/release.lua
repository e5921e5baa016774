-- A server with full memory rejects a script whose first write needs some, and accepts later writes. This first write
-- needs none, and changes nothing.
if stamp ~= '' or minhold ~= '' then
  call('ZREM', queue, '')
end
local holder, now, gone = mine and owner or holding(lock, value), millis(), {}
mine = holder == owner
if stamp == '' then
  leave(gone, owner)
elseif not taken(queue, owner, now) and stand(queue, owner, stamp, now) then
  clear(queue, 0, now, gone)
end
if minhold ~= '' and mine then
  call('SET', lock, owner .. '!', 'PX', minhold)
elseif minhold == '' and (mine or not holder and stamp == '') then
  pass(lock, fence, queue, owner, ARGV[4] or '1000', least, stamp == '', now, gone)
end
remove(queue, gone)
return mine and 1 or 0
