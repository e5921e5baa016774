#!/usr/bin/env bash
# kazoo: after the end of its session, is_acquired is still True for a lock that another client holds, and its release returns True.
#
# Versions: kazoo 2.11.0 on ZooKeeper 3.9.6.
# Expected: the lock of a lost session is lost (the page of the recipe: "its certain that the lock and/or the lease has been lost"), so
#           is_acquired is False, and release returns False as for a lock that was not acquired.
# Seen:     the client receives LOST, another client acquires the lock, and is_acquired of the first is still True. Its release finds no
#           node, changes nothing, and returns True.
# Locks:    a program that checks is_acquired between two steps of its work continues beside the next holder. Only the listener of the
#           client reports the loss.
# Holdfast: the end of a session ends the lease: its context and Check report ErrLost, and Release returns ErrLost.
# Output:   kazoo-holds-after-its-session: as stated: told LOST, other acquired True, first is_acquired True, release True, other's node is there True
. "$(dirname "$0")/lib.sh"
start_zookeeper
export ZOOKEEPER_PORT=$zookeeper_port
seen=$(run_python kazoo==2.11.0 <<'PY'
import os
import threading

from kazoo.client import KazooClient, KazooState

hosts = "127.0.0.1:" + os.environ["ZOOKEEPER_PORT"]
lost = threading.Event()


def listen(state):
    if state == KazooState.LOST:
        lost.set()


first = KazooClient(hosts=hosts, timeout=10)
first.start(timeout=30)
first.add_listener(listen)
lock = first.Lock("/job")
assert lock.acquire()

# Another connection takes the session over and closes it, as when it had run out.
twin = KazooClient(hosts=hosts, client_id=first.client_id)
twin.start(timeout=30)
twin.stop()
assert lost.wait(60)

other = KazooClient(hosts=hosts, timeout=10)
other.start(timeout=30)
theirs = other.Lock("/job")
acquired = theirs.acquire(timeout=30)
held = lock.is_acquired
released = lock.release()
there = len(other.get_children("/job")) == 1
print(f"told LOST, other acquired {acquired}, first is_acquired {held}, release {released}, other's node is there {there}")
PY
)
verdict "told LOST, other acquired True, first is_acquired True, release True, other's node is there True" "$seen" "$zookeeper_version, kazoo 2.11.0"
