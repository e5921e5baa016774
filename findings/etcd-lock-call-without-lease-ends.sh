#!/usr/bin/env bash
# etcd: a lock that was taken by the server's Lock call without a lease passes to another client a minute later.
#
# Versions: etcd 3.4.
# Expected: the call v3lock Lock accepts a lease, whose end frees the lock, and also works without one. A lock without a lease should be
#           held until Unlock.
# Seen:     the server creates a lease of 60 s, does not return it, and does not renew it. A second caller waits, and gets the lock when
#           that lease ends, although the first has not unlocked and has received no error. Unlock of the first succeeds as if it held the
#           lock.
# Locks:    clients in languages without a session library call this service, and their locks last for one minute.
# Holdfast: creates and renews its own lease, and knows the end of the lease by its own clock.
# Output:   etcd-lock-call-without-lease-ends: as stated: first has it, second waits; second has it while first did not unlock; unlock of the first: HTTP 200
. "$(dirname "$0")/lib.sh"
start_etcd
call() { curl -sS --max-time 240 -X POST "http://127.0.0.1:$etcd_port/v3/lock/$1" -d "$2" "${@:3}"; }
key() { sed -n 's/.*"key":"\([^"]*\)".*/\1/p' "$1"; }
call lock '{"name":"am9i"}' >"$dir/first" # "job", as JSON has bytes
[ -n "$(key "$dir/first")" ] && seen="first has it"
call lock '{"name":"am9i"}' >"$dir/second" &
second=$!
pids+=("$second")
sleep 5
[ -s "$dir/second" ] || seen+=", second waits"
wait "$second"
[ -n "$(key "$dir/second")" ] && seen+="; second has it while first did not unlock"
seen+="; unlock of the first: HTTP $(call unlock "{\"key\":\"$(key "$dir/first")\"}" -o "$dir/unlock" -w '%{http_code}')"
verdict 'first has it, second waits; second has it while first did not unlock; unlock of the first: HTTP 200' "$seen" "$etcd_version"
