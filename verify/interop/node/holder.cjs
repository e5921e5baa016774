// Workers that take one lock on command: holder.cjs LIBRARY PORT KEY TTL WORKERS. See verify/peers/worker.go for the protocol.
const fs = require("fs");
const path = require("path");
const readline = require("readline");
const Redis = require("ioredis");

const [library, port, key, seconds, workers] = process.argv.slice(2);
const ttl = Number(seconds) * 1000;
const say = (...words) => console.log(words.join(" "));

// Each worker has a lock() that resolves once the lock is held, with an optional limit in ms, a check() and an unlock().
function redlock(Redlock) {
  return (client) => {
    const once = new Redlock([client], { retryCount: 0 });
    const patient = new Redlock([client]); // its own ten tries, 200 ms and up to 100 more apart
    for (const all of [once, patient]) all.on("error", () => {});
    let lock;
    return {
      async lock(limit) {
        lock = await (limit === undefined ? once : patient).acquire([key], ttl);
      },
      check: () => lock.expiration > Date.now(),
      unlock: () => lock.release(),
    };
  };
}

// using() renews the lock, and tells by the signal that it failed.
function using(Redlock) {
  return (client, told) => {
    const once = new Redlock([client], { retryCount: 0 });
    const patient = new Redlock([client]);
    for (const all of [once, patient]) all.on("error", () => {});
    let signal, finish, done;
    return {
      lock(limit) {
        return new Promise((held, failed) => {
          done = (limit === undefined ? once : patient).using([key], ttl, (s) => {
            signal = s;
            signal.addEventListener("abort", told);
            held();
            return new Promise((end) => (finish = end));
          });
          done.catch(failed);
        });
      },
      check: () => !signal.aborted,
      async unlock() {
        finish();
        await done;
      },
    };
  };
}

function semaphore(client, told) {
  const { Mutex } = require("redis-semaphore");
  let mutex;
  return {
    async lock(limit) {
      mutex = new Mutex(client, key, { lockTimeout: ttl, acquireTimeout: limit, onLockLost: told });
      if (limit !== undefined) await mutex.acquire();
      else if (!(await mutex.tryAcquire())) throw new Error("not acquired");
    },
    check: () => mutex.isAcquired,
    unlock: () => mutex.release(),
  };
}

const libraries = {
  "node-redlock": ["redlock", () => redlock(require("redlock").default)],
  "node-redlock-using": ["redlock", () => using(require("redlock").default)],
  "sesamecare-using": ["@sesamecare-oss/redlock", () => using(require("@sesamecare-oss/redlock").Redlock)],
  "redis-semaphore": ["redis-semaphore", () => semaphore],
};

// version reads the package.json, which not every package exports.
const version = (name) => JSON.parse(fs.readFileSync(path.join(process.env.NODE_PATH, name, "package.json"))).version;

async function obey(lock, verb, limit) {
  try {
    if (verb === "lock" || verb === "try") {
      await lock.lock(limit === undefined ? undefined : Number(limit));
      return "held";
    }
    if (verb === "check") return lock.check() ? "held" : "lost";
    await lock.unlock();
    return "ok";
  } catch (e) {
    return `${verb === "lock" || verb === "try" ? "no" : "error"}: ${e.name} ${e.message}`.replace(/\s+/g, " ").trim();
  }
}

async function main() {
  const [module, open] = libraries[library];
  const make = open();
  const locks = [];
  for (let i = 0; i < Number(workers); i++) {
    const client = new Redis({ port: Number(port) });
    client.on("error", () => {}); // it connects again
    await client.ping();
    locks.push(make(client, () => say(i, "!", "lost")));
  }
  say("ready", version(module));
  readline.createInterface({ input: process.stdin }).on("line", async (line) => {
    const [i, verb, limit] = line.split(" ");
    say(i, "=", await obey(locks[Number(i)], verb, limit));
  });
}

process.on("unhandledRejection", (e) => console.error("unhandled rejection:", e));
main();
