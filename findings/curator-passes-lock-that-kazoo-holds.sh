#!/usr/bin/env bash
# Curator and kazoo on one path of ZooKeeper: kazoo can wait for locks of Curator, but Curator takes locks that kazoo holds.
#
# Versions: Curator 5.9.0 and kazoo 2.11.0 on ZooKeeper 3.9.6.
# Expected: kazoo's documentation of extra_lock_patterns: a lock then counts the nodes of other clients as contenders, for compatibility
#           with their implementations. Both libraries follow the recipe: the lowest sequence number is first.
# Seen:     with extra_lock_patterns=["-lock-"] kazoo waits for Curator's lock. In the other order Curator acquires at once: it sorts by
#           the text after "lock-", which kazoo's nodes do not have, so they sort after its own node. Both hold the lock.
# Locks:    a Python service and a Java service share a path. A test in one order passes, and the other order excludes nobody.
# Holdfast: its pages name the libraries with which it shares locks; no other library uses its keys.
# Output:   curator-passes-lock-that-kazoo-holds: as stated: Curator first: kazoo acquired False; kazoo first: Curator acquired true, kazoo holds True
. "$(dirname "$0")/lib.sh"
start_zookeeper
export ADDR="127.0.0.1:$zookeeper_port" DIR=$dir
run_python kazoo==2.11.0 >"$dir/python.out" <<'PY' &
import os, pathlib, time
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

def await_file(name):
    for _ in range(1100):
        if pathlib.Path(os.environ["DIR"], name).exists():
            return
        time.sleep(0.1)
    raise SystemExit("no file " + name)

client = KazooClient(os.environ["ADDR"])
client.start()
await_file("curator-holds")
lock = client.Lock("/one", extra_lock_patterns=["-lock-"])
try:
    acquired = lock.acquire(timeout=5)
except LockTimeout:
    acquired = False
print(f"Curator first: kazoo acquired {acquired}", flush=True)
lock = client.Lock("/two", extra_lock_patterns=["-lock-"])
lock.acquire()
pathlib.Path(os.environ["DIR"], "kazoo-holds").touch()
await_file("curator-done")
contenders = client.exists("/two/" + lock.node) is not None
print(f"kazoo holds {lock.is_acquired and contenders}", flush=True)
PY
python=$!
pids+=("$python")
java=$(run_java org.apache.curator:curator-recipes:5.9.0 <<'JAVA'
import static java.util.concurrent.TimeUnit.SECONDS;

import java.io.File;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class Main {
    static File file(String name) { return new File(System.getenv("DIR"), name); }

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(System.getenv("ADDR"), new RetryOneTime(1000));
        client.start();
        new InterProcessMutex(client, "/one").acquire();
        file("curator-holds").createNewFile();
        while (!file("kazoo-holds").exists()) {
            Thread.sleep(100);
        }
        System.out.println("Curator acquired " + new InterProcessMutex(client, "/two").acquire(5, SECONDS));
        file("curator-done").createNewFile();
        System.exit(0);
    }
}
JAVA
)
wait "$python"
verdict 'Curator first: kazoo acquired False; kazoo first: Curator acquired true, kazoo holds True' \
  "$(sed -n 1p "$dir/python.out"); kazoo first: $java, $(sed -n 2p "$dir/python.out")" "$zookeeper_version, Curator 5.9.0, kazoo 2.11.0"
