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

// call calls a script; marker is that of a set of several nodes.
function call(client, scripts, name, lock, args, marker) {
  const names = Object.values(keys(lock));
  if (marker) names.push("holdfast:set");
  return client.eval(scripts[name].text, names.length, ...names, ...args, ...(marker ? [marker] : []));
}

module.exports = { keys, call };
