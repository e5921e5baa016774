"""What a client of Holdfast's wire format needs beside a client of Redis: names of keys, and calls of scripts. See docs/wire.md."""


def tagged(key):
    """Puts the companions of key into its hash slot, and gives no two keys the same."""
    head, brace, rest = key.partition("{")
    has_tag = brace and rest.find("}") > 0
    if not has_tag:
        return "{" + key + "}"
    return ":" + key if key[0] in "{:" else key


def keys(lock):
    """The keys of the lock, its counter and its queue."""
    return {"lock": lock, "fence": "holdfast:fence:" + tagged(lock), "queue": "holdfast:queue:" + tagged(lock)}


def call(client, scripts, name, lock, args, marker=None):
    """Calls a script; marker is that of a set of several nodes."""
    k = keys(lock)
    names = list(k.values())
    if marker:
        names.append("holdfast:set")
        args = [*args, marker]
    return client.eval(scripts[name]["text"], len(names), *names, *args)
