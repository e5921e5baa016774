// Workers that take permits of one Semaphore of redis-semaphore: PORT NAME PERMITS CLIENTS WORKERS, as semaphores.go tells them.
// A line with a number of milliseconds has them work for so long; they print what each of them got, and the longest wait.
const readline = require("readline");
const Redis = require("ioredis");
const { Semaphore } = require("redis-semaphore");

const [port, name, permits, clients, workers] = process.argv.slice(1);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function main() {
  const all = Array.from({ length: Number(clients) }, () => new Redis({ port: Number(port) }));
  await Promise.all(all.map((client) => client.ping()));
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const end = performance.now() + Number(line);
    const each = new Array(Number(workers)).fill(0);
    let longest = 0;
    await Promise.all(
      each.map(async (_, i) => {
        while (performance.now() < end) {
          const semaphore = new Semaphore(all[i % all.length], name, Number(permits), { lockTimeout: 30_000, acquireTimeout: 60_000 });
          const asked = performance.now();
          await semaphore.acquire(); // asks every 10 ms
          longest = Math.max(longest, performance.now() - asked);
          await sleep(1);
          await semaphore.release();
          if (performance.now() < end) each[i]++;
        }
      }),
    );
    console.log(JSON.stringify({ each, longest }));
  }
  process.exit(0);
}

main();
