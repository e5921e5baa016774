// What a client of Holdfast's wire format needs beside a client of Redis: names of keys, and calls of scripts. See docs/wire.md.

// tagged puts the companions of key into its hash slot, and gives no two keys the same.
function tagged(key) {
  const brace = key.indexOf("{");
  const hasTag = brace >= 0 && key.indexOf("}", brace + 1) > brace + 1;
  if (!hasTag) return `{${key}}`;
  return "{:".includes(key[0]) ? ":" + key : key;
}

// keys are those of the lock, its counter and its queue.
const keys = (lock) => ({ lock, fence: "holdfast:fence:" + tagged(lock), queue: "holdfast:queue:" + tagged(lock) });

// call calls a script, whose last argument is the marker of a set, or empty.
function call(client, scripts, name, lock, args) {
  const k = keys(lock);
  const names = name === "commit" ? [k.lock, k.fence] : [k.lock, k.fence, k.queue];
  if (args.length && args.at(-1)) names.push("holdfast:set");
  return client.eval(scripts[name].text, names.length, ...names, ...args);
}

module.exports = { keys, call };
