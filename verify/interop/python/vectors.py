"""Runs the vectors of Holdfast's wire format: vectors.py VECTORS PORT [redisson]. Prints each case that differs, and how
many there are."""
import json
import sys
import time

import redis

import wire

NOTE = 10**14  # what the time of a note is added to, for its score


def number(text, now):
    """What a text stands for: now is the client's clock."""
    return str(now + int(text[3:] or 0)) if text.startswith("now") else text


def matches(want, got, clocks, slack):
    """Whether a reply, or what is left on the server, is what the vectors want."""
    if isinstance(want, dict):
        return isinstance(got, redis.ResponseError) and str(got).startswith(want["error"])
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(
            matches(w, g, clocks, slack) or isinstance(w, int) and w > 100 and isinstance(g, int) and 0 <= w - g <= slack
            for w, g in zip(want, got))
    if isinstance(want, str) and " " in want:  # a lock: its owner, and the first of its tokens
        return isinstance(got, str) and matches(want.split(" "), got.split(" "), clocks, slack)
    if isinstance(want, str) and want.startswith("node"):
        return clocks["before"] <= int(got) - int(want[4:] or 0) <= clocks["after"]
    if isinstance(want, str) and want.startswith("now"):
        return str(got) == number(want, clocks["now"])
    return got == want


def micros(client):
    seconds, rest = client.time()
    return seconds * 1_000_000 + rest


def put(client, key, want, now, thread):
    """Sets a key; thread says that it is a lock of Redisson, a hash with the owner as its field."""
    value = want["value"]
    if thread or value == "(hash)":
        client.hset(key, "name" if value == "(hash)" else value, 1)
    else:
        client.set(key, "" if value == "(empty)" else number(value, now))
    if want.get("px"):
        client.pexpire(key, want["px"])


def held(client, key, thread):
    kind = client.type(key)
    if kind == "hash" and thread:
        fields = client.hgetall(key)
        return next(iter(fields)) if list(fields.values()) == ["1"] and "name" not in fields else "(hash)"
    if kind != "string":
        return None if kind == "none" else "(" + kind + ")"
    return client.get(key) or "(empty)"


def check(client, vectors, case, redisson):
    """The differences of one case."""
    k = wire.keys("vector", True) if redisson else wire.keys("lock:vector")
    parts = {part: k[part] for part in ("lock", "fence")}
    client.delete(*k.values(), "holdfast:set")
    now = time.time_ns() // 1000
    given, then = case["given"], case["then"]
    if given.get("set"):
        client.set("holdfast:set", given["set"])
    for part, key in parts.items():
        if part in given:
            put(client, key, given[part], now, redisson and part == "lock")
    members = {}
    begun = micros(client) // 1000
    for w in given.get("queue", []):
        members |= {w["owner"]: w["stamp"], "!" + w["owner"]: -begun - w["px"]}
    for n in given.get("notes", []):
        members["~" + n["owner"]] = -NOTE - begun - n["px"]
    if members:
        client.zadd(k["queue"], members)

    ears = client.pubsub(ignore_subscribe_messages=True)
    channels = ["holdfast:wake:" + name for name in case.get("listening", [])]
    if redisson:
        channels.append("redisson_lock__channel:{vector}")
    for channel in channels:
        ears.subscribe(channel)
        ears.get_message(timeout=5)  # the confirmation
    clocks = {"now": now, "before": micros(client)}
    try:
        reply = wire.call(client, vectors["scripts"], case["script"], k, [number(a, now) for a in case["args"]], case.get("marker"))
    except redis.ResponseError as error:
        reply = error
    clocks["after"] = micros(client)
    wakes = []
    for _ in case.get("wakes", []):
        message = ears.get_message(timeout=5)
        wakes.append(message and {"channel": message["channel"], "message": message["data"]})
    if channels:
        extra = ears.get_message(timeout=0.01)
        wakes += [extra] if extra else []
    ears.close()

    def slack():
        """By how much an expiry that was just read may be shorter."""
        return time.time_ns() // 1_000_000 - now // 1000 + 1

    if not matches(case["reply"], reply, clocks, slack()):
        yield f"reply {reply!r}, want {case['reply']!r}"
    if (client.get("holdfast:set") or "") != then.get("set", ""):
        yield "the marker has changed"
    for part, key in parts.items():
        got, left, want = held(client, key, redisson and part == "lock"), client.pttl(key), then.get(part)
        if (got is None) != (want is None) or want and not matches(want["value"], got, clocks, slack()):
            yield f"{part} {got!r}, want {want!r}"
        elif want and not (0 <= want["px"] - left <= slack() if "px" in want else left == -1):
            yield f"{part} expires in {left}, want {want.get('px')}"
    scores = {member: int(score) for member, score in client.zrange(k["queue"], 0, -1, withscores=True)}
    ended = micros(client) // 1000
    places = [[m, s, -scores["!" + m]] for m, s in scores.items() if m[0] not in "!~" and -scores["!" + m] >= ended]
    notes = [[m[1:], -s - NOTE] for m, s in sorted(scores.items()) if m[0] == "~" and -s - NOTE >= ended]
    for what, got, want in (
            ("queue", places, [[w["owner"], w["stamp"], begun + w["px"]] for w in then.get("queue", [])]),
            ("notes", notes, [[n["owner"], begun + n["px"]] for n in then.get("notes", [])])):
        if [g[:-1] for g in got] != [w[:-1] for w in want] or any(abs(g[-1] - w[-1]) > slack() for g, w in zip(got, want)):
            yield f"{what} {got}, want {want}"
    if wakes != case.get("wakes", []):
        yield f"wake-ups {wakes}, want {case.get('wakes')}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        vectors = json.load(file)
    client = redis.Redis(port=int(sys.argv[2]), decode_responses=True)
    redisson = sys.argv[3:] == ["redisson"]
    bad = [f"keys of {names['lock']}" for names in vectors["names"] if wire.keys(names["lock"], redisson) != names]
    for case in vectors["cases"]:
        bad += [f"{case['name']}: {what}" for what in check(client, vectors, case, redisson)]
    print("\n".join(bad + [f"{len(vectors['cases'])} cases, {len(bad)} differences"]))
    sys.exit(1 if bad else 0)


main()
