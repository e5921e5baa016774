package differential

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc"
	"github.com/holdfast-go/holdfast/internal/rig/redisproc/redistest"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// While a hash slot moves to another shard, a script may touch neither a key that is not on the shard nor one
// that it has just removed. It has its whole effect or none.
func TestScriptInMigratingSlotIsAtomic(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, &redisproc.ClusterOptions{Masters: 2})
	const lock = "lock:vector"
	keys := Keys{Lock: lock, Fence: wire.SlotFence(lock), Queue: wire.QueueKey(lock)}
	slot := strconv.Itoa(wire.Slot(lock))
	from, target := slotOwner(t, cluster, wire.Slot(lock))
	done := make(map[string]int)
	for _, ex := range examples() {
		if ex.call.Marker != "" {
			continue // scripts have no marker in a cluster
		}
		c := ex.makeCase().fromJSON(t)
		t.Run(c.Name, func(t *testing.T) {
			server, err := connectFormat(t.Context(), plainDialect, from, c.Listening...)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			now, names := c.putState(t, server, keys), []string{keys.Lock, keys.Fence, keys.Queue}
			if c.Script == "renew" && len(c.Args) == 2 { // without the queue the script does not count waiters
				names = names[:1]
				if n, _ := c.Reply.(float64); n > 0 {
					c.Reply = float64(0)
				}
			}
			runCommands(t, server, []string{"CLUSTER", "SETSLOT", slot, "MIGRATING", target})
			reply := c.runScript(t, server, &now, ScriptText{Text: scripts[c.Script].Text}, names)
			runCommands(t, server, []string{"CLUSTER", "SETSLOT", slot, "STABLE"})
			if err, ok := reply.(resp.Error); ok && (strings.HasPrefix(string(err), "TRYAGAIN") || strings.HasPrefix(string(err), "ASK")) {
				word, _, _ := strings.Cut(string(err), " ")
				c.Then, c.Wakes, c.Reply = c.Given, nil, map[string]any{"error": word}
				done["turned away"]++
			} else {
				done[c.Script]++
			}
			c.checkOutcome(t, server, keys, now, reply)
		})
	}
	for _, script := range []string{"acquire", "adopt", "renew", "release", "force", "inspect", "turned away"} {
		if done[script] == 0 {
			t.Errorf("no example of %s", script)
		}
	}
	t.Log(done)
}

// fromJSON returns c after a round trip through JSON.
func (c Case) fromJSON(t *testing.T) (out Case) {
	t.Helper()
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// slotOwner returns the address of the master of a slot, and the id of the other master.
func slotOwner(t *testing.T, cluster *redisproc.Cluster, slot int) (addr, other string) {
	t.Helper()
	for _, s := range cluster.Masters() {
		slots, err := cluster.Slots(s)
		if err != nil {
			t.Fatal(err)
		}
		if slots[0] <= slot && slot <= slots[len(slots)-1] {
			addr = s.Addr()
		} else if other, err = s.ID(); err != nil {
			t.Fatal(err)
		}
	}
	return addr, other
}
