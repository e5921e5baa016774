#!/usr/bin/env bash
# proper-lockfile: a process that ends after blocking work removes the lock of the next holder, and a third process gets it.
#
# Versions: proper-lockfile 4.1.2.
# Expected: its page: the holder updates the lock while it works, a lock that was not updated for the time "stale" is taken over, and a
#           process that exits releases its own locks.
# Seen:     the holder works without returning to the event loop, as execSync does, for longer than "stale". Nothing updates the lock, and
#           another process takes it over. The first one ends, and its exit handler removes the folder, which now is the lock of the
#           other. A third process, which waits, gets the lock while the second works; the second learns that later.
# Locks:    two scripts, and then three, run a build or a deployment by execSync under such a lock at once.
# Holdfast: holdfast run renews in its own process, beside the command, and a release compares the owner.
# Output:   proper-lockfile-exit-frees-next-lock: as stated: first works; second acquired, third waits; first ended; third acquired, second was told: false
. "$(dirname "$0")/lib.sh"
mkdir "$dir/node"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$dir/node" proper-lockfile@4.1.2 >"$dir/npm.log" 2>&1
touch "$dir/job"
cat >"$dir/node/first.cjs" <<'JS'
const { execSync } = require("child_process");
const lockfile = require("proper-lockfile");
lockfile.lock("job", { stale: 5000 }).then(() => {
  execSync("touch first-works; while [ ! -e end ]; do sleep 0.1; done");
  process.exit(0);
});
JS
cat >"$dir/node/next.cjs" <<'JS'
const fs = require("fs");
const lockfile = require("proper-lockfile");
const [, , name, other] = process.argv;
const options = {
  stale: 5000,
  retries: { retries: 600, minTimeout: 100, maxTimeout: 100 },
  onCompromised: () => fs.writeFileSync(name + "-told", ""),
};
fs.writeFileSync(name + "-tries", "");
lockfile.lock("job", options).then(() => {
  fs.writeFileSync(name + "-acquired", `${other} was told: ${fs.existsSync(other + "-told")}\n`);
  setInterval(() => {}, 1000); // works, and has its lock updated
});
JS
launch first node "$dir/node/first.cjs"
first=$pid
await test -e "$dir/first-works"
seen="first works"
launch second node "$dir/node/next.cjs" second first
await test -s "$dir/second-acquired"
seen+="; second acquired"
launch third node "$dir/node/next.cjs" third second
await test -e "$dir/third-tries"
sleep 2 # it tries every 0.1 s
[ -e "$dir/third-acquired" ] || seen+=", third waits"
touch "$dir/end"
wait "$first"
await test -s "$dir/third-acquired"
seen+="; first ended; third acquired, $(cat "$dir/third-acquired")"
verdict 'first works; second acquired, third waits; first ended; third acquired, second was told: false' "$seen" "proper-lockfile 4.1.2, Node $(node --version)"
