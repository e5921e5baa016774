"""Workers that take one lock on command: holder.py LIBRARY PORT KEY TTL WORKERS. See verify/peers/worker.go for the protocol."""
import queue
import sys
import threading
from importlib.metadata import version

LIBRARY, PORT, KEY, TTL, WORKERS = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
printing = threading.Lock()


def say(*words):
    with printing:
        print(*words, flush=True)


class RedisPy:
    package = "redis"

    def __init__(self, worker):
        import redis

        self.client = redis.Redis(port=PORT)
        self.client.ping()

    def take(self, limit):
        self.lock = self.client.lock(KEY, timeout=TTL)
        if limit is None:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(blocking_timeout=limit)

    def check(self):
        return self.lock.owned()

    def unlock(self):
        self.lock.release()


class Pottery:
    package = "pottery"

    def __init__(self, worker):
        import redis

        self.client = redis.Redis(port=PORT)
        self.client.ping()

    def take(self, limit):
        from pottery import Redlock

        self.lock = Redlock(key=KEY, masters={self.client}, auto_release_time=TTL)
        if limit is None:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(timeout=limit)

    def check(self):
        return self.lock.locked() > 0

    def unlock(self):
        self.lock.release()


class Kazoo:
    """The notices are the states SUSPENDED and LOST of the client, as its documentation advises. The lock has none of its own."""

    package = "kazoo"

    def __init__(self, worker):
        from kazoo.client import KazooClient, KazooState

        def listen(state):
            if state != KazooState.CONNECTED:
                say(worker, "!", state.lower())

        self.client = KazooClient(hosts=f"127.0.0.1:{PORT}", timeout=TTL)
        self.client.start(timeout=60)
        self.client.add_listener(listen)

    def take(self, limit):
        self.lock = self.client.Lock("/" + KEY)
        if limit is None:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(timeout=limit)

    def check(self):
        return self.lock.is_acquired

    def unlock(self):
        return self.lock.release()


def obey(worker, lock, verb, *args):
    try:
        if verb in ("lock", "try"):
            return "held" if lock.take(int(args[0]) / 1000 if args else None) else "no: False"
        if verb == "check":
            return "held" if lock.check() else "lost"
        said = lock.unlock()
        return "ok" if said is None else f"ok, {said}"
    except Exception as e:
        kind = "no" if verb in ("lock", "try") else "error"
        return f"{kind}: {type(e).__name__} {' '.join(str(e).split())}".rstrip()


library = {"redis-py": RedisPy, "pottery": Pottery, "kazoo": Kazoo}[LIBRARY]
locks = [library(i) for i in range(WORKERS)]
say("ready", version(library.package))


def run(worker, commands):
    """A lock of redis-py belongs to a thread, so each worker has one."""
    while True:
        say(worker, "=", obey(worker, locks[worker], *commands.get()))


queues = [queue.Queue() for _ in range(WORKERS)]
for i, commands in enumerate(queues):
    threading.Thread(target=run, args=(i, commands), daemon=True).start()
for line in sys.stdin:
    number, *words = line.split()
    queues[int(number)].put(words)
