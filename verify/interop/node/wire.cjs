// What a client of Holdfast's wire format needs beside a client of Redis: names of keys, and calls of scripts. See docs/wire.md.

// tagged puts what goes with key into its hash slot, and gives no two keys the same.
function tagged(key) {
  const brace = key.indexOf("{");
  const hasTag = brace >= 0 && key.indexOf("}", brace + 1) > brace + 1;
  if (!hasTag) return key.includes("}") ? `{${slotTag(slot(key))}}${key}` : `{${key}}`;
  return "{:".includes(key[0]) ? ":" + key : key;
}

// crc16 is the CRC-16 (XMODEM) of a text.
function crc16(text) {
  let crc = 0;
  for (const byte of Buffer.from(text)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc;
}

// slot is the hash slot of a text without a hash tag.
function slot(text) {
  return crc16(text) % 16384;
}

// slotTag is the smallest number whose decimal text is in the slot.
function slotTag(number) {
  let i = 0;
  while (slot(String(i)) !== number) i++;
  return String(i);
}

// keys are those of the lock, of the counter and of its queue on one server, in Holdfast's own format or in that of Redisson.
function keys(lock, redisson = false) {
  const fence = redisson ? "redisson_lock_token:" + (lock.includes("{") ? lock : `{${lock}}`) : `holdfast:fence:${crc16(lock) % 256}`;
  return { lock, fence, queue: "holdfast:queue:" + tagged(lock) };
}

// call calls a script; marker is that of a set of several nodes.
function call(client, scripts, name, lockKeys, args, marker) {
  const names = Object.values(lockKeys);
  if (marker) names.push("holdfast:set");
  return client.eval(scripts[name].text, names.length, ...names, ...args, ...(marker ? [marker] : []));
}

module.exports = { keys, call };
