#!/usr/bin/env bash
# filelock: release() in another thread than acquire() does nothing, and reports nothing.
#
# Versions: filelock 4.3.1 on Linux.
# Expected: its documentation of release: it releases the lock. An object that does not have the lock should report that, as
#           threading.Lock does.
# Seen:     a lock object keeps its state per thread. One thread acquires, another one releases: no error, and the lock stays held.
#           is_locked is False in the second thread and True in the first; another process still finds the file locked.
# Locks:    a program that acquires in one thread and releases in a pool, a callback or a finalizer keeps the lock until it exits.
# Holdfast: a lease is a value that any goroutine may release, once.
# Output:   filelock-release-in-other-thread: as stated: release in other thread: None; other process acquires: False; release in its own thread; other process acquires: True
. "$(dirname "$0")/lib.sh"
export FILE="$dir/job.lock"
seen=$(run_python filelock==4.3.1 <<'PY'
import os, subprocess, sys, threading
from filelock import FileLock

TRY = """
import os
from filelock import FileLock, Timeout
try:
    FileLock(os.environ["FILE"]).acquire(timeout=0)
    print(True)
except Timeout:
    print(False)
"""

def other_process():
    return subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True).stdout.strip()

lock = FileLock(os.environ["FILE"])
lock.acquire()
results = []
thread = threading.Thread(target=lambda: results.append(lock.release()))
thread.start()
thread.join()
print(f"release in other thread: {results[0] if results else 'error'}; other process acquires: {other_process()}", end="; ")
lock.release()
print(f"release in its own thread; other process acquires: {other_process()}")
PY
)
verdict 'release in other thread: None; other process acquires: False; release in its own thread; other process acquires: True' "$seen" "filelock 4.3.1"
