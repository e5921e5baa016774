#!/usr/bin/env bash
# etcd: a read that is sorted by creation, with a limit and without an order, does not return the oldest key.
#
# Versions: etcd 3.4 of Debian, etcd client 3.7.3.
# Expected: a range of sort_target CREATE and limit 1 returns the key that was created first, as it does with sort_order ASCEND. Without a
#           limit and an order the keys come in the order of their creation, so that ASCEND seems to be the default.
# Seen:     without an order, etcd first cuts the range to limit+1 keys by name, and then sorts these. POST /v3/kv/range and
#           clientv3.WithSort(SortByCreateRevision, SortNone) with WithLimit(1) do the same.
# Locks:    each waiter puts a key, and the oldest key has the lock. A client that reads the first key without an order gets the wrong
#           holder if three keys wait whose names are not in the order of creation. It then takes or deletes the wrong lock.
# Holdfast: names the order in each read that has a limit and another target than the key.
# Output:   etcd-limit-cuts-before-sort: as stated: all by creation: queue/c queue/a queue/b; the first one without an order: queue/a, ascending: queue/c; client: queue/a, ascending: queue/c
. "$(dirname "$0")/lib.sh"
start_etcd
call() { curl -fsS "http://127.0.0.1:$etcd_port/v3/kv/$1" -d "$2"; }
text() { printf %s "$1" | base64; }
for key in c a b; do call put "{\"key\": \"$(text queue/$key)\"}" >/dev/null; done
keys() {
  call range "{\"key\": \"$(text queue/)\", \"range_end\": \"$(text queue0)\", \"sort_target\": \"CREATE\"$1}" |
    python3 -c 'import base64, json, sys; print(*(base64.b64decode(kv["key"]).decode() for kv in json.load(sys.stdin)["kvs"]))'
}
seen="all by creation: $(keys ''); the first one without an order: $(keys ', "limit": 1'), ascending: $(keys ', "limit": 1, "sort_order": "ASCEND"')"
seen+=$(
  ENDPOINT=127.0.0.1:$etcd_port run_go go.etcd.io/etcd/client/v3@v3.7.3 <<'END'
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ENDPOINT")}})
	if err != nil {
		log.Fatal(err)
	}
	first := func(order clientv3.SortOrder) string {
		r, err := c.Get(ctx, "queue/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, order), clientv3.WithLimit(1))
		if err != nil || len(r.Kvs) != 1 {
			log.Fatal(r, err)
		}
		return string(r.Kvs[0].Key)
	}
	fmt.Printf("; client: %s, ascending: %s\n", first(clientv3.SortNone), first(clientv3.SortAscend))
}
END
)
verdict 'all by creation: queue/c queue/a queue/b; the first one without an order: queue/a, ascending: queue/c; client: queue/a, ascending: queue/c' "$seen" "$etcd_version, etcd client 3.7.3"
