-- Tries every right that the other scripts need, by commands that find nothing to change. All locks may share the
-- counter: it gets a command that never changes it.
return tried({
  { 'SET', lock, 'probe', 'XX' }, { 'GET', lock }, { 'EXISTS', lock, queue }, { 'PTTL', lock }, { 'PEXPIRE', lock, 1000 }, { 'DEL', lock },
  { 'INCRBY', fence, 'none' }, { 'SET', fence, 1, 'NX', 'XX' }, { 'GET', fence },
  { 'ZADD', queue, 'XX', 1, 'probe' }, { 'PEXPIRE', queue, 1000 }, { 'ZRANGEBYSCORE', queue, 0, 0 }, { 'ZCARD', queue }, { 'ZCOUNT', queue, 0, 0 }, { 'ZSCORE', queue, 'probe' },
  { 'ZREM', queue, 'probe' }, { 'TIME' },
})
