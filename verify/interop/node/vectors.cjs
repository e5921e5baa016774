// Runs the vectors of Holdfast's wire format: vectors.cjs VECTORS PORT [redisson]. Prints each case that differs, and how many there are.
const fs = require("fs");
const { isDeepStrictEqual } = require("util");
const Redis = require("ioredis");
const wire = require("./wire.cjs");

// Counters may have 16 digits, which a number of JavaScript holds exactly up to 2^53.
const number = (text, now) => (text.startsWith("now") ? String(now + Number(text.slice(3))) : text);

// matches says whether a reply, or what is left on the server, is what the vectors want.
function matches(want, got, clocks, slack) {
  if (Array.isArray(want)) {
    const near = (w, g) => typeof w === "number" && w > 100 && typeof g === "number" && g <= w && w - g <= slack;
    return Array.isArray(got) && got.length === want.length && want.every((w, i) => matches(w, got[i], clocks, slack) || near(w, got[i]));
  }
  if (want !== null && typeof want === "object") return got instanceof Error && got.message.startsWith(want.error + " ");
  if (typeof want === "string" && want.includes(" ")) { // a lock: its owner, and the first of its tokens
    return typeof got === "string" && matches(want.split(" "), got.split(" "), clocks, slack);
  }
  if (typeof want === "string" && want.startsWith("node")) {
    const at = Number(got) - Number(want.slice(4));
    return clocks.before <= at && at <= clocks.after;
  }
  if (typeof want === "string" && want.startsWith("now")) return String(got) === number(want, clocks.now);
  return got === want;
}

async function micros(client) {
  const [seconds, rest] = await client.time();
  return Number(seconds) * 1e6 + Number(rest);
}

// put sets a key; thread says that it is a lock of Redisson, a hash with the owner as its field.
async function put(client, key, want, now, thread) {
  if (thread || want.value === "(hash)") await client.hset(key, want.value === "(hash)" ? "name" : want.value, 1);
  else await client.set(key, want.value === "(empty)" ? "" : number(want.value, now));
  if (want.px) await client.pexpire(key, want.px);
}

async function held(client, key, thread) {
  const kind = await client.type(key);
  if (kind === "hash" && thread) {
    const fields = Object.entries(await client.hgetall(key));
    return fields.length === 1 && fields[0][1] === "1" && fields[0][0] !== "name" ? fields[0][0] : "(hash)";
  }
  if (kind !== "string") return kind === "none" ? undefined : `(${kind})`;
  return (await client.get(key)) || "(empty)";
}

const NOTE = 1e14; // what the time of a note is added to, for its score

// check returns the differences of one case.
async function check(client, vectors, c, redisson) {
  const k = redisson ? wire.keys("vector", true) : wire.keys("lock:vector");
  const parts = { lock: k.lock, fence: k.fence };
  await client.del(k.queue, ...Object.values(parts), "holdfast:set");
  const now = Date.now() * 1000;
  const { given, then } = c;
  if (given.set) await client.set("holdfast:set", given.set);
  for (const [part, key] of Object.entries(parts)) if (given[part]) await put(client, key, given[part], now, redisson && part === "lock");
  const begun = Math.floor((await micros(client)) / 1000);
  for (const w of given.queue ?? []) await client.zadd(k.queue, w.stamp, w.owner, -begun - w.px, "!" + w.owner);
  for (const n of given.notes ?? []) await client.zadd(k.queue, -NOTE - begun - n.px, "~" + n.owner);
  const ears = client.duplicate();
  const wakes = [];
  ears.on("message", (channel, message) => wakes.push({ channel, message }));
  for (const name of c.listening ?? []) await ears.subscribe("holdfast:wake:" + name);
  if (redisson) await ears.subscribe("redisson_lock__channel:{vector}");

  const clocks = { now, before: await micros(client) };
  const args = c.args.map((a) => number(a, now));
  const reply = await wire.call(client, vectors.scripts, c.script, k, args, c.marker).catch((error) => error);
  clocks.after = await micros(client);
  await ears.ping(); // what was published came before
  ears.disconnect();

  const slack = () => Date.now() - now / 1000 + 1; // by how much an expiry that was just read may be shorter
  const bad = [];
  if (!matches(c.reply, reply, clocks, slack())) bad.push(`reply ${reply}, want ${JSON.stringify(c.reply)}`);
  if (((await client.get("holdfast:set")) ?? "") !== (then.set ?? "")) bad.push("the marker has changed");
  for (const [part, key] of Object.entries(parts)) {
    const [got, want] = [await held(client, key, redisson && part === "lock"), then[part]];
    if ((got === undefined) !== (want === undefined) || (want && !matches(want.value, got, clocks, slack()))) {
      bad.push(`${part} ${got}, want ${JSON.stringify(want)}`);
    } else if (want) {
      const left = await client.pttl(key);
      const early = want.px === undefined ? left + 1 : want.px - left; // without px it does not expire
      if (early < 0 || early > slack()) bad.push(`${part} expires ${early} ms too early`);
    }
  }
  const flat = await client.zrange(k.queue, 0, -1, "WITHSCORES");
  const ended = Math.floor((await micros(client)) / 1000);
  const members = flat.filter((_, i) => i % 2 === 0).map((member, i) => [member, Number(flat[2 * i + 1])]);
  const scores = Object.fromEntries(members);
  const places = members
    .filter(([m]) => !/^[!~]/.test(m) && -scores["!" + m] >= ended)
    .map(([owner, stamp]) => ({ owner, stamp, at: -scores["!" + owner] }));
  const notes = members
    .filter(([m, s]) => m[0] === "~" && -s - NOTE >= ended)
    .map(([m, s]) => ({ owner: m.slice(1), at: -s - NOTE }))
    .sort((a, b) => (a.owner < b.owner ? -1 : 1));
  for (const [what, got, want] of [["queue", places, then.queue ?? []], ["notes", notes, then.notes ?? []]]) {
    const same = got.length === want.length && want.every((w, i) => {
      return got[i].owner === w.owner && got[i].stamp === w.stamp && Math.abs(got[i].at - begun - w.px) <= slack();
    });
    if (!same) bad.push(`${what} ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  }
  if (!isDeepStrictEqual(wakes, c.wakes ?? [])) bad.push(`wake-ups ${JSON.stringify(wakes)}, want ${JSON.stringify(c.wakes)}`);
  return bad;
}

async function main() {
  const vectors = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
  const client = new Redis({ port: Number(process.argv[3]) });
  const redisson = process.argv[4] === "redisson";
  const bad = vectors.names.filter((n) => !isDeepStrictEqual(wire.keys(n.lock, redisson), n)).map((n) => "keys of " + n.lock);
  for (const c of vectors.cases) bad.push(...(await check(client, vectors, c, redisson)).map((what) => `${c.name}: ${what}`));
  console.log([...bad, `${vectors.cases.length} cases, ${bad.length} differences`].join("\n"));
  client.disconnect();
  process.exitCode = bad.length ? 1 : 0;
}

main();
