#!/usr/bin/env bash
# pymemcache: add(), the usual lock of memcached, returns True to every caller, because it does not read the server's answer.
#
# Versions: pymemcache 4.0.0 with memcached 1.6.45.
# Expected: memcached's protocol: add stores only if the key does not exist, and answers NOT_STORED otherwise. A client's add() should
#           return that, so that "if add(): work" is a lock.
# Seen:     with the default settings of Client, add() requests no answer and always returns True, as its reference states under
#           "Returns". Two clients add the same key: both get True, and the server keeps the value of the first. With noreply=False the
#           second gets False.
# Locks:    every caller has the lock, in tests with one client as in production, and nothing fails.
# Holdfast: has no driver for memcached, which may drop a lock at any time.
# Output:   pymemcache-add-always-succeeds: as stated: first True, second True, value first; noreply=False: first True, second False
. "$(dirname "$0")/lib.sh"
fetch memcached-1.6.45
port=$(free_port)
launch memcached "${drop_root[@]}" "$server" -l 127.0.0.1 -p "$port" -U 0 -m 16
await bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
export PORT=$port
seen=$(run_python pymemcache==4.0.0 <<'PY'
import os
from pymemcache.client.base import Client

address = ("127.0.0.1", int(os.environ["PORT"]))
first, second = Client(address), Client(address)
print(f"first {first.add('job', 'first', expire=60)}", end=", ")
first.get("job")  # the server has carried that out
print(f"second {second.add('job', 'second', expire=60)}, value {second.get('job').decode()}", end="; ")
print(f"noreply=False: first {first.add('next', 'first', expire=60, noreply=False)}", end=", ")
print(f"second {second.add('next', 'second', expire=60, noreply=False)}")
PY
)
verdict 'first True, second True, value first; noreply=False: first True, second False' "$seen" "memcached 1.6.45, pymemcache 4.0.0"
