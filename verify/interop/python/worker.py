"""Workers that increment a counter under a lock: worker.py LIBRARY PORT KEY COUNT WORKERS. See interop.go."""
import asyncio
import json
import sys
import threading
import time

import redis
import redis.asyncio

LIBRARY, PORT, KEY, COUNT, WORKERS = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
TTL = 60  # longer than the test: no lock ends before its holder


def start():
    """Says that this process is ready, and waits for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


def threads():
    """redis-py, a client for each thread, with the pauses that it makes by itself."""
    waits = []

    def work(client):
        for _ in range(COUNT // WORKERS):
            lock, since = client.lock(KEY, timeout=TTL), time.monotonic()
            lock.acquire()
            waits.append(time.monotonic() - since)
            n = int(client.get("counter") or 0)
            time.sleep(0.001)
            client.set("counter", n + 1)
            lock.release()

    clients = [redis.Redis(port=PORT) for _ in range(WORKERS)]
    for client in clients:
        client.ping()
    start()
    all_threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    return waits


async def tasks():
    """redis.asyncio, one client for all tasks."""
    waits = []
    client = redis.asyncio.Redis(port=PORT)
    await client.ping()
    start()

    async def work():
        for _ in range(COUNT // WORKERS):
            lock, since = client.lock(KEY, timeout=TTL), time.monotonic()
            await lock.acquire()
            waits.append(time.monotonic() - since)
            n = int(await client.get("counter") or 0)
            await asyncio.sleep(0.001)
            await client.set("counter", n + 1)
            await lock.release()

    await asyncio.gather(*(work() for _ in range(WORKERS)))
    await client.aclose()
    return waits


result = asyncio.run(tasks()) if LIBRARY == "redis.asyncio" else threads()
print(json.dumps({"locks": len(result), "longest": max(result)}))
