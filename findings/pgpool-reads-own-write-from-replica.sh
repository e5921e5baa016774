#!/usr/bin/env bash
# pgpool-II with load balancing: the statement after an UPDATE, on the same connection, does not see it.
#
# Versions: pgpool-II 4.7.3 before PostgreSQL 15 with a replica that lags.
# Expected: a connection reads what it has committed. pgpool-II documents that in an explicit transaction a SELECT after a write goes to
#           the primary (disable_load_balance_on_write = transaction, the default).
# Seen:     each single statement is its own transaction: the SELECT after the UPDATE goes to the replica, which has not applied the
#           UPDATE, and returns the old row, without an error or a notice.
# Locks:    after "UPDATE … WHERE owner IS NULL" changed one row, "SELECT owner" tells the new holder that nobody has the lock, or the
#           last holder. A client that reads a lock before it writes reads a state that is as old as the lag.
# Holdfast: decides by the statement that writes. A later read without its own stamp does not prove that a lease is lost.
# Output:   pgpool-reads-own-write-from-replica: as stated: UPDATE 1, owner read on the same connection: nobody, in a transaction: me
. "$(dirname "$0")/lib.sh"
start_postgres -c max_wal_senders=4
"${drop_root[@]}" pg_basebackup -h 127.0.0.1 -p "$postgres_port" -U test -D "$dir/pg/replica" -R -c fast --no-sync >"$dir/basebackup.log" 2>&1
replica_port=$(free_port)
launch replica "${drop_root[@]}" postgres -D "$dir/pg/replica" -h 127.0.0.1 -p "$replica_port" -k "$dir/pg"
await psql -h 127.0.0.1 -p "$replica_port" -U test -c 'select 1' postgres
fetch pgpool-4.7.3
port=$(free_port)
pcp=$(free_port)
cat >"$dir/pgpool.conf" <<CONF
backend_clustering_mode = 'streaming_replication'
listen_addresses = '127.0.0.1'
port = $port
pcp_listen_addresses = '127.0.0.1'
pcp_port = $pcp
unix_socket_directories = '$dir'
pcp_socket_dir = '$dir'
pid_file_name = '$dir/pgpool.pid'
work_dir = '$dir'
logdir = '$dir'
num_init_children = 8
load_balance_mode = on
sr_check_user = 'test'
sr_check_database = 'postgres'
backend_hostname0 = '127.0.0.1'
backend_port0 = $postgres_port
backend_weight0 = 0
backend_hostname1 = '127.0.0.1'
backend_port1 = $replica_port
backend_weight1 = 1
CONF
: >"$dir/pcp.conf"
sql() { psql -h 127.0.0.1 -p "$1" -U test -Atq postgres -c "$2"; }
sql "$postgres_port" "CREATE TABLE lock AS SELECT 'job' AS name, 'nobody' AS owner"
has_row() { [ "$(sql "$replica_port" 'SELECT owner FROM lock')" = nobody ]; }
await has_row
sql "$replica_port" 'SELECT pg_wal_replay_pause()' # it lags from now on
launch pgpool "$server" -n -f "$dir/pgpool.conf" -F "$dir/pcp.conf" -a "$dir/pcp.conf"
await psql -h 127.0.0.1 -p "$port" -U test -c 'select 1' postgres
seen=$(psql -h 127.0.0.1 -p "$port" -U test -At postgres <<'SQL' | paste -sd' '
UPDATE lock SET owner = 'me' WHERE owner = 'nobody'
\g
SELECT ', owner read on the same connection: ' || owner FROM lock
\g
\set QUIET on
BEGIN;
UPDATE lock SET owner = 'me' WHERE owner = 'me';
SELECT ', in a transaction: ' || owner FROM lock
\g
COMMIT;
SQL
)
seen=${seen// , /, }
verdict 'UPDATE 1, owner read on the same connection: nobody, in a transaction: me' "$seen" \
  "pgpool-II $("$server" --version 2>&1 | sed -n 's/.* version \([0-9.]*\).*/\1/p'), $postgres_version"
