"""What a client of Holdfast's wire format needs beside a client of Redis: names of keys, and calls of scripts. See docs/wire.md."""

import binascii
import functools
import itertools


def tagged(key):
    """Puts what goes with key into its hash slot, and gives no two keys the same."""
    head, brace, rest = key.partition("{")
    has_tag = brace and rest.find("}") > 0
    if not has_tag:
        return "{" + slot_tag(slot(key)) + "}" + key if "}" in key else "{" + key + "}"
    return ":" + key if key[0] in "{:" else key


def slot(text):
    """The hash slot of a text without a hash tag."""
    return binascii.crc_hqx(text.encode(), 0) % 16384


@functools.cache
def slot_tag(number):
    """The smallest number whose decimal text is in the slot."""
    return next(text for text in map(str, itertools.count()) if slot(text) == number)


def keys(lock, redisson=False):
    """The keys of the lock, of the counter and of its queue on one server, in Holdfast's own format or in that of Redisson."""
    fence = "holdfast:fence:%d" % (binascii.crc_hqx(lock.encode(), 0) % 256)
    if redisson:
        fence = "redisson_lock_token:" + (lock if "{" in lock else "{" + lock + "}")
    return {"lock": lock, "fence": fence, "queue": "holdfast:queue:" + tagged(lock)}


def call(client, scripts, name, lock_keys, args, marker=None):
    """Calls a script; marker is that of a set of several nodes."""
    names = list(lock_keys.values())
    if marker:
        names.append("holdfast:set")
        args = [*args, marker]
    return client.eval(scripts[name]["text"], len(names), *names, *args)
