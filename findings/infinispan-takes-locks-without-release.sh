#!/usr/bin/env bash
# Infinispan with the Redis protocol: it reports Redis 15, takes a lock by SET NX PX, and has no scripts to release it.
#
# Versions: Infinispan 15.0.13, its server for the protocol of Redis.
# Expected: a server whose INFO has redis_version:15.0 supports what Redis supports since 2.6: EVAL and SCRIPT LOAD. Programs choose their
#           commands by that version.
# Seen:     SET NX PX takes the lock and rejects a second owner. EVAL, EVALSHA and SCRIPT are unknown commands, so the usual release,
#           which compares and deletes in one script, fails, and the lock stays. Its HELLO reports the mode cluster, its INFO
#           cluster_enabled:0.
# Locks:    acquiring works, each release fails, and every lock lasts for its whole TTL. With a library that ignores errors of a release,
#           users only see that waiters wait long.
# Holdfast: Open rejects the server.
# Output:   infinispan-takes-locks-without-release: as stated: redis_version:15.0, cluster_enabled:0, mode cluster, acquire OK, second owner refused, release ERR, owner still me
. "$(dirname "$0")/lib.sh"
fetch infinispan-15.0.13.Final
port=$(free_port)
launch infinispan "$server" 127.0.0.1 "$port"
ask() { redis-cli -p "$port" "$@" 2>&1 | tr -d '\r'; }
answers() { [ "$(ask ping)" = PONG ]; }
await answers
seen=$(ask info server | grep -m 1 '^redis_version:')
seen+=", $(ask info cluster | grep -m 1 '^cluster_enabled:'), mode $(ask hello 3 | sed -n 's/^mode //p')"
seen+=", acquire $(ask set job me nx px 60000)"
[ -n "$(ask set job other nx px 60000)" ] || seen+=", second owner refused"
seen+=", release $(ask eval "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0" 1 job me | awk '{ print $1 }')"
seen+=", owner still $(ask get job)"
verdict 'redis_version:15.0, cluster_enabled:0, mode cluster, acquire OK, second owner refused, release ERR, owner still me' "$seen" "Infinispan 15.0.13"
