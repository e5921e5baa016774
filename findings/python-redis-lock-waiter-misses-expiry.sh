#!/usr/bin/env bash
# python-redis-lock: a waiter whose own lock has no expiry continues to wait after the holder's lock has expired.
#
# Versions: python-redis-lock 4.0.1 with redis-py 8.1.0 on Redis 7.0.
# Expected: the documentation of expire: the lifetime of the lock. acquire() blocks until the lock is free, and after the holder's expiry
#           it is free.
# Seen:     a waiter sleeps until a release signals it, for at most its own expiry, not the holder's. The holder's process dies, and its
#           key expires after 2 s. A waiter with an expiry of 2 s gets the lock; a waiter without an expiry still waits 8 s after the key
#           has gone, and gets the lock when another client takes and releases it.
# Locks:    a dead holder stops all waiters without an expiry, until the lock is used again.
# Holdfast: a wake-up is a hint: a waiter also asks at intervals, and when the holder's TTL is over.
# Output:   python-redis-lock-waiter-misses-expiry: as stated: waiter with expiry: True; without: waits though keys 0; after another release: True
. "$(dirname "$0")/lib.sh"
start_redis
export REDIS_PORT=$redis_port
seen=$(run_python python-redis-lock==4.0.1 redis==8.1.0 <<'PY'
import os, threading, time
import redis, redis_lock

client = redis.Redis(port=int(os.environ["REDIS_PORT"]), socket_timeout=None)

def wait_for(name, **options):
    """Return a list that has the result of a waiter once it has one, behind a holder that does nothing more."""
    redis_lock.Lock(client, name, expire=2).acquire()
    result = []
    threading.Thread(target=lambda: result.append(redis_lock.Lock(client, name, **options).acquire()), daemon=True).start()
    return result

def settle(result, seconds):
    for _ in range(seconds * 10):
        if result:
            return result[0]
        time.sleep(0.1)
    return "waits"

print("waiter with expiry:", settle(wait_for("one", expire=2), 60), end="; ")
result = wait_for("two")
while client.exists("lock:two"):
    time.sleep(0.1)
print("without:", settle(result, 8), "though keys", client.exists("lock:two"), end="; ")
lock = redis_lock.Lock(client, "two", expire=20)
lock.acquire(blocking=False)
lock.release()
print("after another release:", settle(result, 60))
PY
)
verdict 'waiter with expiry: True; without: waits though keys 0; after another release: True' "$seen" \
  "$redis_version, python-redis-lock 4.0.1"
