package differential

import (
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// redisson is the format of Redisson. The twin's client a is a UUID there, and its owner ids are threads.
var redisson = dialect{
	scripts: map[string]*wire.Script{
		"acquire": wire.Redisson.Acquire, "adopt": wire.Redisson.Adopt, "commit": wire.Redisson.Commit,
		"renew": wire.Redisson.Renew, "release": wire.Redisson.Release,
		"force": wire.Redisson.Force, "inspect": wire.Redisson.Inspect,
	},
	state: `
local kind, holder = redis.call('TYPE', KEYS[1]).ok, ''
if kind ~= 'none' then
  holder = '(' .. kind .. ')'
end
local fields = kind == 'hash' and redis.call('HGETALL', KEYS[1]) or {}
if #fields == 2 and string.find(fields[1], '-', 1, true) then
  holder = fields[1] .. (fields[2] == '1' and '' or ' has it ' .. fields[2] .. ' times')
end
return {
  holder, redis.call('PEXPIRETIME', KEYS[1]),
  redis.call('GET', KEYS[2]) or '0', redis.call('PTTL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), redis.call('PEXPIRETIME', KEYS[3]),
}`,
	toServer: func(text string) string {
		client, rest, id := strings.Cut(text, ".")
		switch {
		case len(client) != 1 || client < "a" || client > "f":
			return text
		case id:
			return clientUUID(client) + ":" + rest
		}
		return clientUUID(client)
	},
	fromServer: func(text string) string {
		for _, client := range []string{"a", "b", "c", "d", "e"} {
			text = strings.ReplaceAll(text, clientUUID(client)+":", client+".")
			text = strings.ReplaceAll(text, clientUUID(client), client)
		}
		return text
	},
	tokenInCounter: true,
}

func clientUUID(client string) string {
	of := func(n int) string { return strings.Repeat(client, n) }
	return of(8) + "-" + of(4) + "-8" + of(3) + "-8" + of(3) + "-" + of(12)
}

// redissonChannel is the channel on which the cases announce a free lock.
var redissonChannel = wire.RedissonChannel("vector")

// RedissonVectors makes testdata/vectors-redisson.json from the examples of the plain format that need one
// node and features of both formats.
func RedissonVectors() Vectors {
	v := Vectors{Wire: 3, Scripts: map[string]ScriptText{"drop": {SHA1: wire.Redisson.Drop.SHA, Text: wire.Redisson.Drop.Text}}}
	for name, s := range redisson.scripts {
		v.Scripts[name] = ScriptText{SHA1: s.SHA, Text: s.Text}
	}
	for _, key := range []string{"invoice/42", "{tenant-7}invoice", "a{b", "a}b", "ключ"} {
		v.Names = append(v.Names, Names{Lock: key, Fence: wire.RedissonFence(key), Queue: wire.QueueKey(key)})
	}
	for _, ex := range examples() {
		free := ex.given.Lock == nil
		switch {
		case redisson.scripts[ex.call.Script] == nil, ex.call.Marker != "":
		case strings.Contains(ex.name, "long"), strings.Contains(ex.name, "another library"), strings.Contains(ex.name, "empty value"),
			strings.Contains(ex.name, "whose number"):
		case ex.call.Script == "renew" && free && ex.call.Restore, ex.call.Least != 0, ex.call.Script == "force" && ex.call.TTL == 0, ex.given.Notes != nil:
		case ex.given.Lock != nil && (ex.given.Lock.Value == "a.1" || ex.given.Fence == nil || ex.given.Fence.Value == "5000"):
			// In this format the counter belongs to the lock.
		default:
			v.Cases = append(v.Cases, ex.redissonCase())
		}
	}
	return v
}

// redissonCase converts ex to a case in the format of Redisson.
func (ex example) redissonCase() Case {
	freed := ex.makeCase()
	c := freed
	c.Given, c.Then = c.Given.toRedisson(), c.Then.toRedisson()
	c.Listening, c.Args = slices.Clone(c.Listening), slices.Clone(c.Args)
	for i, client := range c.Listening {
		c.Listening[i] = redisson.toServer(client)
	}
	for i, arg := range c.Args {
		c.Args[i] = redisson.toServer(arg)
	}
	if list, ok := c.Reply.([]any); ok {
		for i, v := range list {
			if text, ok := v.(string); ok {
				list[i] = redisson.toServer(text)
			}
		}
		if c.Script == "acquire" {
			c.Reply = append(list, int64(0)) // no RFairLock waiters
		}
	}
	c.Wakes = nil
	for _, w := range freed.Wakes {
		if ex.freesLock(freed) && strings.Contains(w.Message, " forced ") {
			c.Wakes = append(c.Wakes, Wake{Channel: redissonChannel, Message: "0"})
		}
		client, _, _ := strings.Cut(w.Message, ".")
		c.Wakes = append(c.Wakes, Wake{Channel: wire.Wake + redisson.toServer(client), Message: redisson.toServer(w.Message)})
	}
	if ex.freesLock(freed) && !strings.Contains(lastWake(c.Wakes).Message, " forced ") {
		c.Wakes = append(c.Wakes, Wake{Channel: redissonChannel, Message: "0"})
	}
	return c
}

func lastWake(wakes []Wake) (w Wake) {
	if len(wakes) > 0 {
		w = wakes[len(wakes)-1]
	}
	return w
}

// freesLock reports whether the script frees the lock, or finds it free.
func (ex example) freesLock(c Case) bool {
	switch before := ex.given.Lock; ex.call.Script {
	case "release":
		return c.Then.Lock == nil && (before != nil || ex.call.Stamp == 0)
	case "force":
		return c.Then.Lock == nil && before != nil
	}
	return false
}

// toRedisson returns s with ids of Redisson, and a counter that never expires.
func (s State) toRedisson() State {
	if s.Lock != nil {
		owner, _, _ := strings.Cut(s.Lock.Value, " ") // the counter holds its token
		s.Lock = &Key{Value: redisson.toServer(owner), PX: s.Lock.PX}
	}
	s.Notes = nil
	s.Queue = slices.Clone(s.Queue)
	for i := range s.Queue {
		s.Queue[i].Owner = redisson.toServer(s.Queue[i].Owner)
	}
	return s
}

// plainRedisson is the format of Redisson without translated names.
var plainRedisson = dialect{scripts: redisson.scripts, state: redisson.state, toServer: identity, fromServer: identity, tokenInCounter: true, put: putThread}

// putThread returns the command that gives a free lock to a thread, or that stores another type under the key.
func putThread(k Keys, owner string) []string {
	if owner == "(hash)" {
		owner = "name"
	}
	return []string{"HINCRBY", k.Lock, owner, "1"}
}
