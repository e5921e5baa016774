#!/usr/bin/env bash
# HAProxy in front of PostgreSQL: a holder of an advisory lock that sends nothing loses the lock after the idle timeout, and does not notice.
#
# Versions: HAProxy 3.2.26 before PostgreSQL 15.
# Expected: PostgreSQL: a session-level advisory lock is held until it is released or the session ends. The holder has not closed its
#           connection, TCP keepalives are on, and the server runs.
# Seen:     "timeout client" counts only bytes of the protocol, and no keepalives. HAProxy closes both connections, PostgreSQL ends the
#           session and gives the lock to the next client. The first client learns that at its next statement, after its work.
# Locks:    work of some minutes under pg_advisory_lock has two holders if a proxy or mesh in between has an idle timeout of a minute, and
#           the work sends no statement for that long.
# Holdfast: a lease is renewed three times per TTL, and its holder knows its end by its own clock.
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
