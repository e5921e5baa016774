package memory

import "fmt"

// Leftovers names the locks and places in queues that are on any node.
func (d *Driver) Leftovers() []string {
	var names []string
	for _, n := range d.cluster.nodes {
		for _, name := range n.sweep() {
			names = append(names, fmt.Sprintf("%q on %s", name, n.name))
		}
	}
	return names
}

// Notes counts the owners from whom the first node knows that a lock was taken.
func (d *Driver) Notes(key string) int {
	n := d.cluster.nodes[0]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes[key] == nil {
		return 0
	}
	return len(n.notes[key].until)
}
