#!/usr/bin/env bash
# nutcracker (twemproxy) in front of two servers: a client does not find a key that a script has written.
#
# Versions: nutcracker 0.5.0 before two Redis 7.
# Expected: one key space: GET finds, through the same proxy, a key that EVAL has written as one of its KEYS.
# Seen:     EVAL goes to the server of its first key, without an error for the other keys, which may belong to other servers. The script
#           writes all keys there. GET goes to the server of the key itself, and finds nothing.
# Locks:    scripts of locks keep a counter of tokens, or a queue, beside the key of the lock. Each lock then counts on the server of its
#           own key: tokens do not rise across names as the script promises, and a read of the counter finds nothing.
# Holdfast: its first request, HELLO, shows that this is no Redis: nutcracker closes the connection, and the error says so.
# Output:   nutcracker-script-writes-elsewhere: as stated: of 20 counters that scripts wrote, GET finds some and not others
. "$(dirname "$0")/lib.sh"
start_redis
one=$redis_port
start_redis
fetch nutcracker-0.5.0
port=$(free_port)
cat >"$dir/nutcracker.yml" <<YML
alpha:
  listen: 127.0.0.1:$port
  redis: true
  hash: md5
  distribution: ketama
  servers:
   - 127.0.0.1:$one:1
   - 127.0.0.1:$redis_port:1
YML
launch nutcracker "$server" -c "$dir/nutcracker.yml" -o "$dir/nutcracker.log" -s "$(free_port)"
await redis-cli -p "$port" get x
found=0
for i in $(seq 20); do
  redis-cli -p "$port" EVAL "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('INCR', KEYS[2])" 2 "lock:$i" "counter:$i" me >/dev/null
  [ "$(redis-cli -p "$port" GET "counter:$i")" != 1 ] || found=$((found + 1))
done
seen="of 20 counters that scripts wrote, GET finds"
if [ $found -eq 20 ]; then seen+=" all"; elif [ $found -eq 0 ]; then seen+=" none"; else seen+=" some and not others"; fi
verdict 'of 20 counters that scripts wrote, GET finds some and not others' "$seen" "nutcracker 0.5.0, $redis_version"
