#!/usr/bin/env bash
# etcdctl lock: the command that it started continues after another client has the lock, and is not notified.
#
# Versions: etcdctl 3.6.16 with etcd 3.4.
# Expected: etcdctl's page: the lock is held until etcdctl is terminated.
# Seen:     the network of the first etcdctl hangs for longer than the lock's TTL. The second one gets the lock and starts its command.
#           When the network is back, the first etcdctl and its command still run; 5 s later both commands run.
# Locks:    after a network failure, or a pause, of some seconds, two commands do the work at once that etcdctl lock should protect.
# Holdfast: holdfast run ends its command before another can have the lock.
# Output:   etcdctl-lock-lets-command-outlive-lock: as stated: first command runs, second command runs; 5 s after the network is back: both run
. "$(dirname "$0")/lib.sh"
start_etcd
build_go etcdctl go.etcd.io/etcd/etcdctl/v3@v3.6.16
port=$(free_port)
launch relay python3 -u -c '
import socket, sys, threading

def pass_on(a, b):
    while data := a.recv(65536):
        b.sendall(data)

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pass_on, args=pair, daemon=True).start()
' "$port" "$etcd_port"
relay=$pid
await bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
work='echo $$ >"$0"; exec sleep 300'
runs() { kill -0 "$(cat "$dir/$1.pid" 2>/dev/null)" 2>/dev/null && printf "$1 command runs"; }
launch first "$dir/etcdctl" --endpoints "127.0.0.1:$port" lock --ttl 5 job -- sh -c "$work" "$dir/first.pid"
await test -s "$dir/first.pid"
pids+=("$(cat "$dir/first.pid")")
kill -STOP "$relay"
launch second "$dir/etcdctl" --endpoints "127.0.0.1:$etcd_port" lock --ttl 5 job -- sh -c "$work" "$dir/second.pid"
await test -s "$dir/second.pid"
pids+=("$(cat "$dir/second.pid")")
seen="$(runs first), $(runs second)"
kill -CONT "$relay"
sleep 5
[ "$(runs first), $(runs second)" != "$seen" ] || seen+="; 5 s after the network is back: both run"
verdict 'first command runs, second command runs; 5 s after the network is back: both run' "$seen" "etcdctl 3.6.16, $etcd_version"
