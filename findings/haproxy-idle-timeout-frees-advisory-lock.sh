#!/usr/bin/env bash
# HAProxy before PostgreSQL: a holder of an advisory lock that is busy elsewhere loses it after the idle timeout, and does not notice.
#
# Versions: HAProxy 3.2.26 before PostgreSQL 15.
# Expected: PostgreSQL: an advisory lock of a session is held until it is released or the session ends. The holder has a connection that
#           it did not close, with TCP keepalives on, to a server that runs.
# Seen:     "timeout client" counts bytes of the protocol alone, and not keepalives. HAProxy closes both links, PostgreSQL ends the
#           session and gives the lock to the next client. The first one is told at its next statement, after its work.
# Locks:    work of minutes behind pg_advisory_lock, with a proxy or mesh on the way whose idle timeout is a minute or an hour, has two
#           holders whenever it does not speak to the database for that long.
# Holdfast: a lease is renewed three times in its TTL, and its end is known to its holder by the holder's own clock.
# Output:   haproxy-idle-timeout-frees-advisory-lock: as stated: first got t, second locked while first runs, first then hears: connection closed
. "$(dirname "$0")/lib.sh"
start_postgres
fetch haproxy-3.2.26
port=$(free_port)
cat >"$dir/haproxy.cfg" <<CFG
defaults
  mode tcp
  timeout connect 10s
  timeout client 5s
  timeout server 5s
listen front
  bind 127.0.0.1:$port
  server one 127.0.0.1:$postgres_port
CFG
launch haproxy "$server" -db -f "$dir/haproxy.cfg"
await psql -h 127.0.0.1 -p "$port" -U test -c 'select 1' postgres
coproc first { psql "host=127.0.0.1 port=$port user=test dbname=postgres keepalives_idle=1 keepalives_interval=1" -Atq 2>&1; }
pids+=("$first_PID")
exec {to_first}>&"${first[1]}" {from_first}<&"${first[0]}"
ask() { # of the first client
  echo "$1" >&"$to_first"
  read -r -t 60 answer <&"$from_first" || answer=nothing
}
ask "SELECT pg_try_advisory_lock(42);"
seen="first got $answer"
timeout 60 psql -h 127.0.0.1 -p "$postgres_port" -U test -Atq postgres -c 'SELECT pg_advisory_lock(42)' >/dev/null && seen+=", second locked"
kill -0 "$first_PID" 2>/dev/null && seen+=" while first runs"
ask "SELECT 'fine';"
case $answer in *"closed the connection"* | *FATAL*) answer="connection closed" ;; esac
seen+=", first then hears: $answer"
verdict 'first got t, second locked while first runs, first then hears: connection closed' "$seen" \
  "HAProxy $("$server" -v | sed -n 's/^HAProxy version \([0-9.]*\).*/\1/p'), $postgres_version"
