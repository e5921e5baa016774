#!/usr/bin/env bash
# redis-py: if one reply to acquire is lost, acquire() returns False although the lock holds its own token.
#
# Versions: redis-py 8.1.0 on Redis 7.0.
# Expected: the documentation of Lock: acquire returns False if another holder has the lock, and the client retries a failed connection by
#           itself, so that a short network failure is not visible.
# Seen:     a proxy passes SET NX to the server and cuts the connection instead of returning the reply. The client connects again and
#           sends the same SET NX, which finds the key of the first one. acquire returns False, and so does owned().
# Locks:    a lock without a holder for its whole timeout, and for ever with timeout=None, the default.
# Holdfast: a repeated acquire names the same owner, and the server answers it as granted.
# Output:   redis-py-lost-reply-locks-out-itself: as stated: acquire False, key holds own token True, owned False
. "$(dirname "$0")/lib.sh"
start_redis
export REDIS_PORT=$redis_port
seen=$(run_python redis==8.1.0 <<'PY'
import os
import socket
import threading

import redis

server_port = int(os.environ["REDIS_PORT"])
cut = threading.Event()


def serve(client):
    """Passes bytes to the server and back, and once cuts the connection in the place of the reply to SET."""
    server = socket.create_connection(("127.0.0.1", server_port))
    while request := client.recv(65536):
        server.sendall(request)
        reply = server.recv(65536)
        if b"\r\nSET\r\n" in request and not cut.is_set():
            cut.set()
            break
        client.sendall(reply)
    client.close()
    server.close()


def accept(listener):
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(listener,), daemon=True).start()

lock = redis.Redis(port=listener.getsockname()[1]).lock("job", timeout=600)
acquired = lock.acquire(blocking=False, token="mine")
holds = redis.Redis(port=server_port).get("job") == b"mine"
assert cut.is_set()
print(f"acquire {acquired}, key holds own token {holds}, owned {lock.owned()}")
PY
)
verdict 'acquire False, key holds own token True, owned False' "$seen" "$redis_version, redis-py 8.1.0"
