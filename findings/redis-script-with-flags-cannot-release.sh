#!/usr/bin/env bash
# Redis: the first line #!lua keeps a full server, or one without replicas, from running a script that only deletes or reads.
#
# Versions: Redis 7.0; REDIS_SERVER=PROGRAM looks at another.
# Expected: "#!lua" declares flags, and with none declared nothing changes: the usual release script (GET, compare, DEL) runs on a server
#           that is out of memory, because DEL does, and a script that reads runs on one that has too few replicas to write.
# Seen:     the same two scripts run without the first line. With it the server refuses both before they start: OOM, NOREPLICAS. No flag
#           allow-oom or no-writes is declared, so it takes each script for one that writes and grows.
# Locks:    who adds the line to a release script, as new scripts are advised to begin, cannot release on a full server; each lock stays
#           until its TTL ends, and so does what fills the server.
# Holdfast: its scripts have no such line: each command in them meets the server's limits by itself.
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
