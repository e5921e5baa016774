// Workers that increment a counter under a lock: worker.cjs LIBRARY PORTS KEY COUNT WORKERS. See interop.go.
const readline = require("readline");
const Redis = require("ioredis");

const [library, ports, key, count, workers] = process.argv.slice(2);
const ttl = 60_000; // longer than the test: no lock ends before its holder
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// locks returns how to take the lock once; the result frees it.
const locks = {
  redlock(clients) {
    const { default: Redlock, ExecutionError } = require("redlock");
    const redlock = new Redlock(clients); // ten tries, 200 ms and up to 100 more apart
    return async () => {
      for (;;) {
        try {
          const lock = await redlock.acquire([key], ttl);
          return () => lock.release();
        } catch (error) {
          // Between its tries it keeps what it has on a minority of the servers, and blocks itself and others with that. It frees
          // that when it gives up, so it must not be told to try for ever.
          if (!(error instanceof ExecutionError)) throw error;
        }
      }
    };
  },
  "redis-semaphore"([client]) {
    const { Mutex } = require("redis-semaphore"); // the key is mutex: and the name
    return async () => {
      const mutex = new Mutex(client, key, { acquireTimeout: ttl });
      await mutex.acquire();
      return () => mutex.release();
    };
  },
};

async function main() {
  const clients = ports.split(",").map((port) => new Redis({ port: Number(port) }));
  await Promise.all(clients.map((client) => client.ping()));
  const take = locks[library](clients);
  console.log("ready");
  const lines = readline.createInterface({ input: process.stdin });
  await new Promise((go) => lines.once("line", go));
  lines.close();

  const waits = [];
  async function work() {
    for (let i = 0; i < Math.floor(count / workers); i++) {
      const since = performance.now();
      const free = await take();
      waits.push(performance.now() - since);
      const n = Number(await clients[0].get("counter"));
      await sleep(1);
      await clients[0].set("counter", n + 1);
      await free();
    }
  }
  await Promise.all(Array.from({ length: Number(workers) }, work));
  console.log(JSON.stringify({ locks: waits.length, longest: Math.max(...waits) / 1000 }));
  clients.forEach((client) => client.disconnect());
}

main();
