package redis

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/quorum"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// evenCountWarning returns the warning that the last of an even number of nodes adds no safety.
func evenCountWarning(n int) error {
	return server.Advise(fmt.Errorf("with %d nodes as with %d, locks survive the loss of %d", n, n-1, n-quorum.Majority(n)), "use an odd number")
}

func siblingsWarning(who string) string {
	return who + " use this server too: their locks and the locks of this client do not exclude one another"
}
