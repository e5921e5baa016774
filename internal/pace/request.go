package pace

import "time"

// Service is a kind of service. Its kind determines the time for one request about a lock.
type Service int

// The kinds of services.
const (
	// Voters are asked at the same time, and the lock needs a majority of them. A slow one costs nothing while
	// the others answer, so its time is short: six attempts fit between the first renewal and the end of the
	// lease. Voters keep locks in memory, so only the network takes time.
	Voters Service = iota
	// Members are asked one after the other until one of them answers for all. Three of them can be asked
	// between the first renewal and the end of the lease.
	Members
	// Alone is a service without a substitute, so the client can only wait for it. Cancelling a statement
	// costs its connection. Two attempts fit.
	Alone
)

// requestShares has a row for each Service: the share of the TTL for one request, and the shortest and the longest
// time. Members and databases write to a disk before they answer, hence their shortest time. Beyond the
// longest time waiting is useless: a server without an answer by then has lost the request.
var requestShares = [...]struct {
	share       time.Duration
	least, most time.Duration
}{
	Voters:  {10, 50 * time.Millisecond, time.Second},
	Members: {6, 300 * time.Millisecond, 2 * time.Second},
	Alone:   {4, 300 * time.Millisecond, 3 * time.Second},
}

// RequestShare returns the part of a TTL that one request to s may take. Leases are planned so that this time
// is free for a renewal. It does not depend on the factor.
func RequestShare(ttl time.Duration, s Service) time.Duration {
	row := requestShares[s]
	return min(max(ttl/row.share, row.least), row.most)
}

// RequestTime returns how long a client waits for the answer to one request about a lock with this TTL: its
// share. On a slow machine it is longer, up to a quarter of the TTL, so that two attempts still fit.
func RequestTime(ttl time.Duration, s Service) time.Duration {
	share := RequestShare(ttl, s)
	return max(share, min(Scale(share), ttl/requestShares[Alone].share))
}
