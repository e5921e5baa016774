#!/usr/bin/env bash
# PostgreSQL at REPEATABLE READ: pg_advisory_xact_lock waits for the last holder, and then does not see what that holder has committed.
#
# Versions: PostgreSQL 15.
# Expected: the documentation of explicit locking: the snapshot of such a transaction is frozen at its first query, so a lock that is
#           taken before protects later reads. LOCK TABLE as the first statement does.
# Seen:     an advisory lock is taken by a SELECT, which is the first query: the snapshot is older than the wait. The second holder reads
#           the state before the commit of the first, inserts the same number again, and commits without an error.
# Locks:    work under an advisory lock at REPEATABLE READ reads old rows, although nobody else holds the lock. An UPDATE of the same row
#           would fail; reads and inserts do not.
# Holdfast: LockRow rejects transactions above READ COMMITTED, and a lease is held before the work's transaction begins.
# Output:   postgres-advisory-lock-after-snapshot: as stated: LOCK TABLE: numbers 1 2; pg_advisory_xact_lock: numbers 1 1
. "$(dirname "$0")/lib.sh"
start_postgres
session=(psql -h 127.0.0.1 -p "$postgres_port" -U test -qAt postgres)
ask() { "${session[@]}" <<<"$1"; }
ask 'create table gate (); create table journal (way text, number int)'
# number_under LOCK has two transactions, the second of which waits for the first, write the next number each.
number_under() {
  local begin="begin isolation level repeatable read; $1;"
  local write="insert into journal select '$1', coalesce(max(number), 0) + 1 from journal where way = '$1';"
  coproc first { exec "${session[@]}"; }
  local holder=$first_PID
  pids+=("$holder")
  exec {to_first}>&"${first[1]}" {from_first}<&"${first[0]}"
  echo "$begin $write select 'inside';" >&"$to_first"
  local line=
  while [ "$line" != inside ]; do read -r -t 60 line <&"$from_first"; done
  "${session[@]}" <<<"$begin $write commit;" >"$dir/second.log" 2>&1 &
  local second=$!
  pids+=("$second")
  waits() { [ "$(ask "select count(*) from pg_stat_activity where wait_event_type = 'Lock'")" = 1 ]; }
  await waits
  printf 'commit;\n\\q\n' >&"$to_first"
  wait "$second"
  wait "$holder" || true
  ask "select 'numbers ' || string_agg(number::text, ' ' order by number) from journal where way = '$1'"
}
number_under 'lock table gate' >"$dir/table"
number_under 'select pg_advisory_xact_lock(42)' >"$dir/advisory"
verdict 'LOCK TABLE: numbers 1 2; pg_advisory_xact_lock: numbers 1 1' \
  "LOCK TABLE: $(cat "$dir/table"); pg_advisory_xact_lock: $(cat "$dir/advisory")" "$postgres_version"
