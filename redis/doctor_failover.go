package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/place"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// checkFailover checks what makes a failover safe: which servers watch the master, and that an isolated master
// stops before another takes its place.
func (e *nodeExam) checkFailover(ctx context.Context) error {
	if !e.n.place.Replaced() {
		return nil
	}
	switch {
	case e.info["min_slaves_good_slaves"] == "0": // checkRole has reported it
	case e.info["connected_slaves"] == "0":
		e.addFault("replicas", driver.VerdictWarning, server.Advise(errors.New("it has no replica: no server can take over"),
			"start one (REPLICAOF, and in a cluster CLUSTER REPLICATE)"))
	default:
		e.OK("replicas", "%s", e.info["connected_slaves"])
	}
	down := e.checkSentinels(ctx)
	values, err := e.l.Do([]string{"CONFIG", "GET", "min-replicas-max-lag"}, []string{"WAIT", "0", "0"})
	if err != nil {
		return err
	}
	if values[1].IsError() {
		e.addFault("force", driver.VerdictWarning, server.Advise(fmt.Errorf("it cannot be asked whether a replica knows of a lock that was taken away: "+
			"a failover may bring the old holder back: %w", values[1].Err()), unhiddenCommandFix))
	} else {
		e.OK("force", "a replica can confirm that a lock was taken away")
	}
	lag, err := strconv.Atoi(server.Setting(values[0]))
	unsaid := server.ErrHidden
	if values[0].IsError() {
		unsaid = values[0].Err()
	}
	switch stops := time.Duration(lag+1) * time.Second; {
	case e.info["min_slaves_good_slaves"] == "": // checkRole has reported it
	case err != nil:
		e.addHidden("isolation", unsaid, "+config|get", "")
	case down > 0 && stops > down:
		e.addFault("isolation", driver.VerdictWarning, server.Advise(
			fmt.Errorf("where it is cut off, it stops granting after %v, and is replaced after %v", stops, down),
			"set min-replicas-max-lag to a few seconds, and down-after-milliseconds of the Sentinels above that"))
	default:
		e.OK("isolation", "where it is cut off, it stops granting after %v", stops)
	}
	return nil
}

// checkSentinels asks each Sentinel for the master. It returns the time after which one of them considers the
// master down; 0: unknown.
func (e *nodeExam) checkSentinels(ctx context.Context) (down time.Duration) {
	f, ok := e.n.place.(*place.Master)
	if !ok || len(f.Sentinels) == 0 {
		return 0
	}
	var wrong []string
	for _, sentinel := range f.Sentinels {
		if addr, err := f.Ask(ctx, sentinel); err != nil {
			wrong = append(wrong, err.Error())
		} else if addr != e.server {
			wrong = append(wrong, fmt.Sprintf("sentinel %s: it names %s as the master", sentinel, addr))
		} else {
			f.Sentinel(ctx, sentinel, []string{"SENTINEL", "MASTER", f.Watched}, func(v resp.Value) error {
				millis, _ := strconv.Atoi(server.ParseMap(v)["down-after-milliseconds"])
				down = time.Duration(millis) * time.Millisecond
				return nil
			})
		}
	}
	if len(wrong) > 0 {
		e.addFault("sentinels", driver.VerdictWarning, server.Advise(errors.New(strings.Join(wrong, "; ")), "a failover needs more than half of the Sentinels"))
	} else {
		e.OK("sentinels", "%d agree", len(f.Sentinels))
	}
	return down
}
