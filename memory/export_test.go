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
