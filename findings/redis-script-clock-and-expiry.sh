#!/usr/bin/env bash
# Redis: within a script the clock for TIME advances while the clock for expiry stands still.
#
# Versions: Redis 7.0; REDIS_SERVER=PROGRAM looks at another, such as Redis 8 and Valkey 8, which do the same.
# Expected: EXPIRE's documentation: a key is gone once its time has passed; TIME's: the server's current time. Both should agree in one
#           script.
# Seen:     a script sets a key for 50 ms and reads TIME until 200 ms have passed. The key still EXISTS: expiry uses the time at which the
#           script began. After the script the key is gone. PTTL in the script follows TIME in Redis 7.0 (0), and the expiry clock in
#           Redis 8 (50); the output shows it, and the verdict ignores it.
# Locks:    a script that compares a deadline by TIME with a key that has a PEXPIRE uses two clocks, which disagree within the script.
# Holdfast: its scripts never compare TIME with an expiry: the TTL of the key ends a lock.
# Output:   redis-script-clock-and-expiry: as stated: TIME moved 200 ms, EXISTS 1 after a TTL of 50 ms; after the script EXISTS 0
. "$(dirname "$0")/lib.sh"
start_redis
seen=$(redis-cli -p "$redis_port" eval "
  local function now()
    local t = redis.call('TIME')
    return t[1] * 1000 + t[2] / 1000
  end
  redis.call('SET', KEYS[1], 'owner', 'PX', 50)
  local begun = now()
  local calls = 0
  while now() - begun < 200 and calls < 1e7 do calls = calls + 1 end
  if now() - begun < 200 then return redis.error_reply('TIME stands still') end
  return { redis.call('EXISTS', KEYS[1]), redis.call('PTTL', KEYS[1]) }
" 1 job | tr '\n' ' ')
read -r exists pttl <<<"$seen"
verdict 'TIME moved 200 ms, EXISTS 1 after a TTL of 50 ms; after the script EXISTS 0' \
  "TIME moved 200 ms, EXISTS $exists after a TTL of 50 ms; after the script EXISTS $(redis-cli -p "$redis_port" exists job)" \
  "PTTL $pttl, $redis_version"
