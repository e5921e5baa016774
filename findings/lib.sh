# The scripts of this folder source this file. It has a temporary folder, servers on free ports of 127.0.0.1, and the verdict.
#
# A script exits 0 if it saw what its head states, 1 if it saw something else, and 2 if it could not check: a package or a server
# was missing, or the time was over.
set -euo pipefail

name=$(basename "$0" .sh)
dir=$(mktemp -d "${TMPDIR:-/tmp}/finding.XXXXXX")
chmod 755 "$dir"
pids=()
status=2
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
for bin in /usr/lib/postgresql/*/bin; do PATH=$PATH:$bin; done

cleanup() {
  trap - EXIT
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for _ in $(seq 50); do # five seconds, then it is killed
    jobs -pr | grep -q . || break
    sleep 0.1
  done
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [ $status -eq 2 ]; then
    echo "$name: could not run" >&2
    tail -n 5 "$dir"/*.log >&2 2>/dev/null || true
  fi
  rm -rf "$dir"
  exit $status
}
trap cleanup EXIT
trap 'exit 2' INT TERM

# verdict WANT SEEN VERSIONS prints the result line of the script and ends the script.
verdict() {
  if [ "$1" = "$2" ]; then
    status=0
    echo "$name: as stated: $2 ($3)"
  else
    status=1
    echo "$name: CHANGED: saw \"$2\", not \"$1\" ($3)"
  fi
  exit $status
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# await COMMAND... waits until the command succeeds, for a minute.
await() {
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  echo "$name: no success within a minute: $*" >&2
  return 2
}

# launch NAME COMMAND... starts a server in the background. Its output goes to NAME.log and its process id to $pid.
launch() {
  local log=$dir/$1.log
  shift
  (cd "$dir" && exec "$@") >"$log" 2>&1 &
  pid=$!
  pids+=("$pid")
}

# Some servers do not run as root. If this script runs as root, this command prefix runs them as the user nobody.
drop_root=()
if [ "$(id -u)" -eq 0 ]; then drop_root=(setpriv --reuid=nobody --regid=nogroup --clear-groups --); fi

make_data() {
  mkdir "$dir/$1"
  if [ "$(id -u)" -eq 0 ]; then chown nobody:nogroup "$dir/$1"; fi
}

start_redis() {
  redis_port=$(free_port)
  launch redis "${REDIS_SERVER:-redis-server}" --bind 127.0.0.1 --port "$redis_port" --save '' --dir "$dir" "$@"
  await redis-cli -p "$redis_port" ping
  redis_version="$(redis-cli -p "$redis_port" info server | tr -d '\r' | sed -n 's/^redis_version:/Redis /p; s/^valkey_version:/Valkey /p' | tail -n 1)"
}

start_postgres() {
  make_data pg
  "${drop_root[@]}" initdb -D "$dir/pg" -U test -A trust --no-sync >"$dir/initdb.log" 2>&1
  postgres_port=$(free_port)
  launch postgres "${drop_root[@]}" postgres -D "$dir/pg" -h 127.0.0.1 -p "$postgres_port" -k "$dir/pg" "$@"
  await psql -h 127.0.0.1 -p "$postgres_port" -U test -c 'select 1' postgres
  postgres_version="PostgreSQL $(psql -h 127.0.0.1 -p "$postgres_port" -U test -Atc 'show server_version' postgres | cut -d' ' -f1)"
}

# start_mariadb serves on a socket only, without users: $mariadb_dsn is a database for go-sql-driver/mysql.
start_mariadb() {
  make_data maria
  "${drop_root[@]}" mkdir "$dir/maria/test"
  launch mariadb "${drop_root[@]}" mariadbd --no-defaults --datadir="$dir/maria" --skip-networking --skip-grant-tables \
    --socket="$dir/maria/socket" --pid-file="$dir/maria/pid" --innodb-buffer-pool-size=16M --innodb-log-file-size=8M "$@"
  await test -S "$dir/maria/socket"
  mariadb_dsn="root@unix($dir/maria/socket)/test"
  mariadb_version="MariaDB $(mariadbd --version | sed -n 's/.*Ver \([0-9.]*\)-MariaDB.*/\1/p')"
}

start_etcd() {
  etcd_port=$(free_port)
  local peer
  peer=$(free_port)
  launch etcd etcd --data-dir "$dir/etcd" --listen-client-urls "http://127.0.0.1:$etcd_port" \
    --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer" "$@"
  await curl -fsS "http://127.0.0.1:$etcd_port/health"
  etcd_version="etcd $(etcd --version | sed -n 's/^etcd Version: //p')"
}

# start_zookeeper starts the ZooKeeper that tools/servers fetches, on port $zookeeper_port. Sessions may be as short as two seconds.
start_zookeeper() {
  fetch zookeeper-3.9.6
  zookeeper_port=$(free_port)
  mkdir "$dir/zookeeper"
  printf '%s\n' tickTime=1000 "dataDir=$dir/zookeeper" clientPortAddress=127.0.0.1 "clientPort=$zookeeper_port" admin.enableServer=false \
    4lw.commands.whitelist=ruok forceSync=no >"$dir/zoo.cfg"
  launch zookeeper "$server" org.apache.zookeeper.server.ZooKeeperServerMain "$dir/zoo.cfg"
  await bash -c "exec 3<>/dev/tcp/127.0.0.1/$zookeeper_port && printf ruok >&3 && grep -q imok <&3"
  zookeeper_version='ZooKeeper 3.9.6'
}

# run_go MODULE@VERSION... builds the program on standard input in a separate module, and runs it for at most two minutes.
run_go() {
  mkdir "$dir/go"
  cat >"$dir/go/main.go"
  (
    cd "$dir/go"
    export GOWORK=off GOFLAGS=-modcacherw
    go mod init finding
    go get "$@"
    go mod tidy
    go build -o ../program .
  ) >"$dir/build.log" 2>&1
  timeout 120 "$dir/program" 2>"$dir/program.log"
}

# build_go NAME PACKAGE@VERSION builds a module's main package as the program $dir/NAME.
build_go() {
  mkdir "$dir/go-$1"
  (
    cd "$dir/go-$1"
    export GOWORK=off GOFLAGS='-modcacherw -mod=mod'
    go mod init finding
    go get "$2"
    go build -o "../$1" "${2%@*}"
  ) >"$dir/build.log" 2>&1
}

# run_java GROUP:ARTIFACT:VERSION... compiles the class Main on standard input with these artifacts and their dependencies, and runs it for at most two
# minutes. It needs mvn and javac.
run_java() {
  local artifact group name version
  mkdir "$dir/java"
  cat >"$dir/java/Main.java"
  {
    echo '<project><modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version><dependencies>'
    for artifact; do
      IFS=: read -r group name version <<<"$artifact"
      echo "<dependency><groupId>$group</groupId><artifactId>$name</artifactId><version>$version</version></dependency>"
    done
    echo '</dependencies></project>'
  } >"$dir/java/pom.xml"
  mvn -q -B -f "$dir/java/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$dir/java/jars" >"$dir/mvn.log" 2>&1
  javac -nowarn -proc:none -cp "$dir/java/jars/*" -d "$dir/java" "$dir/java/Main.java" >"$dir/javac.log" 2>&1
  timeout 120 java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$dir/java/jars/*:$dir/java" Main 2>"$dir/program.log"
}

# run_python PACKAGE==VERSION... installs packages in a separate environment, and runs standard input for at most two minutes.
run_python() {
  cat >"$dir/main.py"
  python3 -m venv "$dir/venv" >"$dir/venv.log" 2>&1
  "$dir/venv/bin/pip" install --quiet "$@" >"$dir/pip.log" 2>&1
  timeout 120 "$dir/venv/bin/python" "$dir/main.py" 2>"$dir/program.log"
}

# run_node PACKAGE@VERSION... installs packages in a separate folder, and runs standard input for at most two minutes.
run_node() {
  mkdir "$dir/node"
  cat >"$dir/node/main.cjs"
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir/node" "$@" >"$dir/npm.log" 2>&1
  timeout 120 node "$dir/node/main.cjs" 2>"$dir/program.log"
}

# fetch NAME sets $server to the program of a server that tools/servers fetches at the version in its name.
fetch() {
  server=$("$(dirname "$0")/../tools/servers" "$1" 2>"$dir/fetch.log")
  server=$(readlink -f "$server")
}
