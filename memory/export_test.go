package memory

import "fmt"

// Leftovers names the locks and queue entries that are on any node.
func (d *Driver) Leftovers() []string {
	var names []string
	for _, n := range d.cluster.nodes {
		for _, name := range n.sweepExpired() {
			names = append(names, fmt.Sprintf("%q on %s", name, n.name))
		}
	}
	return names
}

// Notes returns the number of owner notes on the first node.
func (d *Driver) Notes(key string) int {
	n := d.cluster.nodes[0]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes[key] == nil {
		return 0
	}
	return len(n.notes[key].until)
}
