#!/usr/bin/env bash
# node-redlock: the signal of using() is not aborted while the server does not answer, although the lock has expired and another client has it.
#
# Versions: redlock 5.0.0-beta.2 with ioredis 6.0.0 on Redis 7.0.
# Expected: its README: "In the case that auto-extension fails, an AbortSignal will be updated to indicate that abortion of the routine is
#           in order". An extension that was not answered before the lock expired has failed.
# Seen:     the connection hangs for 6 s under a lock of 2 s. Another client acquires the lock. 2 s later the signal is not aborted. It is
#           aborted once the server answers, and rejects the extension.
# Locks:    the routine works beside the next holder for as long as the network hangs. A commandTimeout of ioredis bounds that time.
# Holdfast: a lease ends by the clock of its holder, without any answer, before the service may give the lock to another client.
# Output:   node-redlock-signal-waits-for-server: as stated: other acquired true, 2 s later aborted false, after the network aborted true
. "$(dirname "$0")/lib.sh"
start_redis
export REDIS_PORT=$redis_port
seen=$(run_node redlock@5.0.0-beta.2 ioredis@6.0.0 <<'JS'
const net = require("net");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const port = Number(process.env.REDIS_PORT);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const sockets = [];

// The proxy passes bytes both ways, until hang() pauses all of its sockets.
const proxy = net.createServer((client) => {
  const server = net.connect(port, "127.0.0.1");
  sockets.push(client, server);
  client.pipe(server);
  server.pipe(client);
  for (const s of [client, server]) s.on("error", () => {});
});
const hang = () => sockets.forEach((s) => s.pause());
const go = () => sockets.forEach((s) => s.resume());

proxy.listen(0, "127.0.0.1", async () => {
  const make = (p, settings) => {
    const all = new Redlock([new Redis({ port: p })], settings);
    all.on("error", () => {});
    return all;
  };
  const first = make(proxy.address().port, {}); // the usual ten tries
  const other = make(port, { retryCount: -1, retryDelay: 100, retryJitter: 0 });
  await first
    .using(["job"], 2000, async (signal) => {
      hang();
      const lock = await other.acquire(["job"], 60000);
      await sleep(2000);
      const during = signal.aborted;
      go();
      for (let i = 0; i < 600 && !signal.aborted; i++) await sleep(100);
      console.log(`other acquired ${lock.value !== ""}, 2 s later aborted ${during}, after the network aborted ${signal.aborted}`);
      process.exit(0);
    })
    .catch(() => {});
});
JS
)
verdict 'other acquired true, 2 s later aborted false, after the network aborted true' "$seen" "$redis_version, redlock 5.0.0-beta.2"
