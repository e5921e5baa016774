#!/usr/bin/env bash
# PostgreSQL: a client that waits for an advisory lock makes the holder's CREATE INDEX CONCURRENTLY fail with a deadlock.
#
# Versions: PostgreSQL 15.
# Expected: the documentation of advisory locks: the system gives them no meaning. A migration that holds one and builds an index on a
#           table that no other client uses should wait for nobody.
# Seen:     the SELECT of the second client, which waits in pg_advisory_lock, has a snapshot, and CREATE INDEX CONCURRENTLY waits for
#           older snapshots. If the second client has waited for longer than deadlock_timeout, the holder gets "deadlock detected" and an
#           invalid index; if it began later, it gets the error itself. If it polls by pg_try_advisory_lock, the index is built.
# Locks:    migration tools take an advisory lock, so the second instance of a program that starts breaks the index of the first.
# Holdfast: a waiter ends a blocked statement after 0.9 s, within the usual deadlock_timeout.
# Output:   postgres-advisory-waiter-stops-index: as stated: waiter blocks: deadlock detected, valid false; waiter polls: valid true
. "$(dirname "$0")/lib.sh"
start_postgres
session=(psql -h 127.0.0.1 -p "$postgres_port" -U test -qAt postgres)
ask() { "${session[@]}" <<<"$1"; }
ask 'create table plain (id int)'
# waits reports whether the second client has waited for longer than deadlock_timeout, so that it looks for a deadlock no more.
waits() {
  [ "$(ask "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '3 s'")" = 1 ]
}
# build_index NAME READY builds an index as the holder of the lock, while the second client runs standard input, once it is READY.
build_index() {
  "${session[@]}" <&0 >"$dir/second.log" 2>&1 &
  local second=$!
  pids+=("$second")
  await $2
  echo "create index concurrently $1 on plain (id);" >&"$to_first"
  echo "select 'valid ' || indisvalid from pg_index where indexrelid = '$1'::regclass;" >&"$to_first"
  local line=
  until [[ $line == valid* ]]; do
    read -r -t 60 line <&"$from_first" || return
    case $line in *'deadlock detected'*) printf 'deadlock detected, ' ;; esac
  done
  printf '%s' "$line"
  kill "$second" 2>/dev/null || true
  ask "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'" >/dev/null # it waits on
}
coproc first { exec "${session[@]}" 2>&1; }
pids+=("$first_PID")
exec {to_first}>&"${first[1]}" {from_first}<&"${first[0]}"
echo "select pg_advisory_lock(42); select 'holds';" >&"$to_first"
line=
while [ "$line" != holds ]; do read -r -t 60 line <&"$from_first"; done
seen=$(build_index one waits <<<'select pg_advisory_lock(42);')
seen="waiter blocks: $seen; waiter polls: $(build_index two "grep -q f $dir/second.log" < <(while echo 'select pg_try_advisory_lock(42);'; do sleep 0.2; done))"
verdict 'waiter blocks: deadlock detected, valid false; waiter polls: valid true' "$seen" "$postgres_version"
