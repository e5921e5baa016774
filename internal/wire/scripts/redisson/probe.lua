-- Tries every right that the other scripts need, by commands that find nothing to change.
return tried({
  { 'HLEN', lock }, { 'HKEYS', lock }, { 'HINCRBY', lock, 'probe', 'none' }, { 'PTTL', lock }, { 'PEXPIRE', lock, 1000 }, { 'DEL', lock },
  { 'INCRBY', fence, 'none' }, { 'SET', fence, 1, 'XX' }, { 'GET', fence }, { 'DEL', fence },
  { 'ZADD', queue, 'XX', 1, 'probe' }, { 'PEXPIRE', queue, 1000 }, { 'ZRANGEBYSCORE', queue, 0, 0 }, { 'ZCARD', queue }, { 'ZCOUNT', queue, 0, 0 }, { 'ZSCORE', queue, 'probe' },
  { 'ZREM', queue, 'probe' }, { 'TIME' }, { 'EXISTS', named('redisson_lock_queue', lock) }, { 'LINDEX', named('redisson_lock_queue', lock), 0 },
  { 'LPOP', named('redisson_lock_queue', lock) }, { 'ZSCORE', named('redisson_lock_timeout', lock), 'probe' },
  { 'ZREM', named('redisson_lock_timeout', lock), 'probe' }, { 'PUBLISH', named('redisson_lock__channel', lock), '' },
})
