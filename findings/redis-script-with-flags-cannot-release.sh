#!/usr/bin/env bash
# Redis: with the first line #!lua, a full server, or a server without replicas, does not run a script that only deletes or reads.
#
# Versions: Redis 7.0; REDIS_SERVER=PROGRAM looks at another.
# Expected: "#!lua" declares flags, and a script without flags behaves as before: the usual release script (GET, compare, DEL) runs on a
#           server that is out of memory, because DEL does, and a script that reads runs on a server with too few replicas to write.
# Seen:     the same two scripts run without the first line. With it the server rejects both before they start: OOM, NOREPLICAS. They
#           declare neither allow-oom nor no-writes, so the server treats each script as one that writes and allocates.
# Locks:    a release script with that line, which the documentation recommends for new scripts, cannot release on a full server: each
#           lock, and the memory it takes, stays until its TTL ends.
# Holdfast: its scripts have no such line: the server applies its limits to each command.
# Output:   redis-script-with-flags-cannot-release: as stated: full: release 1, with #!lua OOM; no replicas: read me, with #!lua NOREPLICAS
. "$(dirname "$0")/lib.sh"
start_redis
ask() { redis-cli -p "$redis_port" "$@" 2>&1; }
# word prints the first word of an answer: a value, or the kind of an error.
word() { awk 'NR == 1 { print $1 }'; }
release="if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
read="return redis.call('GET', KEYS[1])"
lua='#!lua
'
ask set first me >/dev/null
ask set second me >/dev/null
ask config set maxmemory 1 >/dev/null
seen="full: release $(ask eval "$release" 1 first me | word), with #!lua $(ask eval "$lua$release" 1 second me | word)"
ask config set maxmemory 0 >/dev/null
ask config set min-replicas-to-write 1 >/dev/null
seen+="; no replicas: read $(ask eval "$read" 1 second | word), with #!lua $(ask eval "$lua$read" 1 second | word)"
verdict 'full: release 1, with #!lua OOM; no replicas: read me, with #!lua NOREPLICAS' "$seen" "$redis_version"
