#!/usr/bin/env bash
# PGlite behind its socket server: every client gets the same advisory lock, and each sees the others' session.
#
# Versions: PGlite 0.5.14, pglite-socket 0.2.17 with --max-connections.
# Expected: PostgreSQL: pg_try_advisory_lock returns false while another session has the lock, and each connection is a session.
# Seen:     all connections share the one backend that PGlite is, and with it one session. The same session may take an advisory lock
#           again, so each client is told true; both have the same pg_backend_pid, and one sees the other's SET.
# Locks:    tests that run on PGlite instead of a server pass where code excludes nobody, and code that excludes fails in ways that no
#           server has (a prepared statement of another client, a notification that comes to its sender).
# Holdfast: compares the backend of its connections; where they are one, it polls, prepares nothing, and doctor names it. Its locks are
#           rows, and exclude there.
# Output:   pglite-advisory-lock-for-each: as stated: first t, second t while first has it, one backend, SET of the first seen by the second
. "$(dirname "$0")/lib.sh"
(cd "$dir" && npm install --silent --no-audit --no-fund @electric-sql/pglite-socket@0.2.17 @electric-sql/pglite@0.5.14 >npm.log 2>&1)
port=$(free_port)
launch pglite node_modules/.bin/pglite-server --host=127.0.0.1 --port="$port" --max-connections=10
up() { psql -h 127.0.0.1 -p "$port" -U postgres -c "select 1" postgres; }
await up || await up || await up # it compiles for a while
coproc first { psql -h 127.0.0.1 -p "$port" -U postgres -Atq postgres 2>&1; }
pids+=("$first_PID")
exec {to_first}>&"${first[1]}" {from_first}<&"${first[0]}"
ask() { # of the first client
  echo "$1" >&"$to_first"
  read -r -t 60 answer <&"$from_first" || answer=nothing
}
second() { psql -h 127.0.0.1 -p "$port" -U postgres -Atq postgres -c "$1" 2>&1; }
ask "SELECT pg_try_advisory_lock(42);"
seen="first $answer"
seen+=", second $(second 'SELECT pg_try_advisory_lock(42)')"
ask "SELECT 'yes';"
[ "$answer" != yes ] || seen+=" while first has it"
ask "SELECT pg_backend_pid();"
if [ "$answer" = "$(second 'SELECT pg_backend_pid()')" ]; then seen+=", one backend"; else seen+=", a backend each"; fi
ask "SET application_name = 'the first'; SELECT 1;"
[ "$(second 'SHOW application_name')" != "the first" ] || seen+=", SET of the first seen by the second"
verdict 'first t, second t while first has it, one backend, SET of the first seen by the second' "$seen" "PGlite 0.5.14, pglite-socket 0.2.17"
