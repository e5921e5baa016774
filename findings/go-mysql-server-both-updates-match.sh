#!/usr/bin/env bash
# go-mysql-server: two transactions both take one row by UPDATE ... WHERE owner = '', and both commit.
#
# Versions: go-mysql-server 0.20.0 with its engine in memory, as tests embed it for MySQL; PyMySQL 1.1.1.
# Expected: MySQL: the second UPDATE waits for the row lock of the first, then finds no row with owner = ''; SELECT ... FOR UPDATE waits
#           too.
# Seen:     each UPDATE reports one row and each COMMIT succeeds; the row has the second owner. FOR UPDATE returns at once the row that
#           another transaction has changed. BEGIN and FOR UPDATE are accepted and lock nothing.
# Locks:    a lock in a table, which code takes by such an UPDATE, has two holders there. A test that checks for two holders reports
#           correct code, and a test that does not check passes with any code.
# Holdfast: migrate, doctor and the first Open try this with a row of their own, and reject the server.
# Output:   go-mysql-server-both-updates-match: as stated: first 1 row, second 1 row, FOR UPDATE passes, both commit, owner second
. "$(dirname "$0")/lib.sh"
fetch go-mysql-server-0.20.0
port=$(free_port)
launch server "$server" "127.0.0.1:$port"
seen=$(
  PORT=$port run_python PyMySQL==1.1.1 <<'END'
import os, time
import pymysql

def connect():
    return pymysql.connect(host="127.0.0.1", port=int(os.environ["PORT"]), user="root", database="app", read_timeout=10)

for _ in range(100):
    try:
        setup = connect()
        break
    except pymysql.err.OperationalError:
        time.sleep(0.2)
with setup.cursor() as c:
    c.execute("CREATE TABLE locks (name VARCHAR(20) PRIMARY KEY, owner VARCHAR(20) NOT NULL)")
    c.execute("INSERT INTO locks VALUES ('job', '')")
setup.commit()

first, second = connect(), connect()
take = "UPDATE locks SET owner = %s WHERE name = 'job' AND owner = ''"
a, b = first.cursor(), second.cursor()
seen = []
for c in a, b:
    c.execute("BEGIN")
a.execute(take, ("first",))
seen.append("first %d row" % a.rowcount)
try:
    b.execute(take, ("second",))
    seen.append("second %d row" % b.rowcount)
    b.execute("SELECT owner FROM locks WHERE name = 'job' FOR UPDATE")
    seen.append("FOR UPDATE passes")
except pymysql.err.Error as e:
    seen.append("second waits or fails: %s" % e.args[0])
first.commit()
second.commit()
seen.append("both commit")
with setup.cursor() as c:
    c.execute("SELECT owner FROM locks")
    seen.append("owner " + c.fetchone()[0])
print(", ".join(seen))
END
)
verdict 'first 1 row, second 1 row, FOR UPDATE passes, both commit, owner second' "$seen" "go-mysql-server 0.20.0, PyMySQL 1.1.1"
