#!/usr/bin/env bash
# etcd: a lease is granted for longer than requested, and the difference depends on an election flag.
#
# Versions: etcd 3.4.
# Expected: the API's documentation: the requested TTL is advisory, and the answer has the TTL that the server chose. A lease of 1 s is a
#           valid request, and has nothing to do with elections.
# Seen:     for 1 s, a server grants 2 s with the default election timeout, and 8 s with an election timeout of 5 s: the shortest lease is
#           one and a half election timeouts, rounded up to seconds.
# Locks:    an operator who raises the election timeout for a slow network prolongs the locks of all dead holders.
# Holdfast: rejects a TTL for which the server grants a longer lease, with an error that names --election-timeout.
# Output:   etcd-lease-is-longer-than-asked: as stated: asked 1 s: granted 2 s by default, 8 s with an election timeout of 5 s
. "$(dirname "$0")/lib.sh"
grant() {
  curl -fsS "http://127.0.0.1:$etcd_port/v3/lease/grant" -d '{"TTL": 1}' |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["TTL"])'
}
start_etcd
await grant
short=$(grant)
kill "$pid"
wait "$pid" || true
rm -rf "$dir/etcd"
start_etcd --election-timeout 5000 --heartbeat-interval 500
await grant
verdict 'asked 1 s: granted 2 s by default, 8 s with an election timeout of 5 s' \
  "asked 1 s: granted $short s by default, $(grant) s with an election timeout of 5 s" "$etcd_version"
