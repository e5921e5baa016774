//go:build unix

package proc

// descendants are those of all that come of root, at any depth.
func descendants(root int, all []Process) []Process {
	children := make(map[int][]Process)
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []Process
	for next := children[root]; len(next) > 0; {
		p := next[0]
		next = append(next[1:len(next):len(next)], children[p.PID]...)
		found = append(found, p)
	}
	return found
}
