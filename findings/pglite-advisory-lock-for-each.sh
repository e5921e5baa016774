#!/usr/bin/env bash
# PGlite behind its socket server: every client gets the same advisory lock, and each sees the session of the others.
#
# Versions: PGlite 0.5.14, pglite-socket 0.2.17 with --max-connections.
# Expected: PostgreSQL: pg_try_advisory_lock returns false while another session has the lock, and each connection is its own session.
# Seen:     all connections share the one backend of PGlite, and so one session. A session may take its advisory lock again, so each
#           client gets true; both have the same pg_backend_pid, and one sees the SET of the other.
# Locks:    tests on PGlite instead of a server pass for code that excludes nobody, and correct code fails in ways that no server has (a
#           prepared statement of another client, a notification that reaches its sender).
# Holdfast: compares the backends of its connections. If they are the same, it polls and prepares nothing, and doctor reports it. Its
#           locks are rows, and exclude other clients there.
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
