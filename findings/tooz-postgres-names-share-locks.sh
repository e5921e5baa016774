#!/usr/bin/env bash
# tooz over PostgreSQL: all names share 65,536 locks, so two of a few hundred names exclude each other.
#
# Versions: tooz 9.1.0 with psycopg2-binary 2.9.12 on PostgreSQL 15.
# Expected: the documentation of get_lock: the lock of that name. Locks of different names should be independent, and the key of an
#           advisory lock of PostgreSQL has 64 bits.
# Seen:     the driver takes two bytes of a hash of the name. Of the names report-0, report-1, ... two have the same bytes within the
#           first few hundred. While one is held, the other cannot be acquired, although nobody holds it.
# Locks:    work under unrelated names waits for each other, and a process that takes both names, one inside the other, waits for itself.
# Holdfast: names are compared in full, also in a database that hashes them.
# Output:   tooz-postgres-names-share-locks: as stated: two of the first 1000 names collide: True; one acquired True, other acquired False; released: other acquired True
. "$(dirname "$0")/lib.sh"
start_postgres
export URL="postgresql://test@127.0.0.1:$postgres_port/postgres"
seen=$(run_python tooz==9.1.0 psycopg2-binary==2.9.12 <<'PY'
import os
from tooz import coordination

coordinator = coordination.get_coordinator(os.environ["URL"], b"member")
coordinator.start()
known = {}
for i in range(1000):
    lock = coordinator.get_lock(b"report-%d" % i)
    if lock.key in known:
        break
    known[lock.key] = lock
one, other = known[lock.key], lock
print(f"two of the first 1000 names collide: {one is not other and one.name != other.name}", end="; ")
print(f"one acquired {one.acquire(blocking=False)}, other acquired {other.acquire(blocking=False)}", end="; ")
one.release()
print(f"released: other acquired {other.acquire(blocking=False)}")
PY
)
verdict 'two of the first 1000 names collide: True; one acquired True, other acquired False; released: other acquired True' "$seen" \
  "$postgres_version, tooz 9.1.0"
