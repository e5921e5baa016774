#!/usr/bin/env bash
# PostgreSQL: statement_timeout does not end a commit that waits for its standby, and a client that cancels the commit has committed.
#
# Versions: PostgreSQL 15.
# Expected: the documentation of statement_timeout: a statement that takes longer than this is aborted. An aborted statement leaves
#           nothing behind.
# Seen:     if the synchronous standby is away, an INSERT under a timeout of 1 s waits for five seconds and more. When it is cancelled, it
#           succeeds with a warning, and everybody sees the row. Until then nobody else sees it.
# Locks:    a client that relies on statement_timeout waits past its own deadline, and a lock that it gave up is taken afterwards.
# Holdfast: trust counts from before the statement was sent, each wait ends on the context, and an owner id is never used again.
# Output:   postgres-timeout-spares-commit: as stated: 5 s at a timeout of 1 s: waits for SyncRep, rows 0; cancelled: INSERT 0 1, rows 1
. "$(dirname "$0")/lib.sh"
start_postgres
ask() { psql -h 127.0.0.1 -p "$postgres_port" -U test -qAtc "$1" postgres; }
ask 'create table locks (owner text)'
ask "alter system set synchronous_standby_names = 'away'"
ask 'select pg_reload_conf()' >"$dir/reload.log"
reloaded() { [ "$(ask 'show synchronous_standby_names')" = away ]; }
await reloaded
PGAPPNAME=taker PGOPTIONS='-c statement_timeout=1s' timeout 300 \
  psql -h 127.0.0.1 -p "$postgres_port" -U test -Atc "insert into locks values ('me')" postgres >"$dir/insert" 2>"$dir/insert.log" &
insert=$!
pids+=("$insert")
late="from pg_stat_activity where application_name = 'taker' and clock_timestamp() - query_start > interval '5 s'"
over() { ! kill -0 "$insert" || [ "$(ask "select count(*) $late")" = 1 ]; }
await over
seen="5 s at a timeout of 1 s: waits for $(ask "select wait_event $late"), rows $(ask 'select count(*) from locks')"
ask "select pg_cancel_backend(pid) $late" >"$dir/cancel.log"
wait "$insert" || true
seen="$seen; cancelled: $(cat "$dir/insert"), rows $(ask 'select count(*) from locks')"
verdict '5 s at a timeout of 1 s: waits for SyncRep, rows 0; cancelled: INSERT 0 1, rows 1' "$seen" "$postgres_version"
