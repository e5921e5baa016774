package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

const (
	// calmTTL is a TTL that outlasts an election.
	calmTTL = 5 * time.Second
	// farBehind is the lag, in log entries, at which the doctor reports a member.
	farBehind = 1000
)

// Diagnose implements driver.Doctor. It writes no key, but requests a lease and revokes it: only a granted
// lease shows the servers' minimal TTL.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	if err := d.calls.Enter(); err != nil {
		return driverkit.ClosedFindings(err)
	}
	defer d.calls.Leave()
	ttl = cmp.Or(ttl, driverkit.DoctorTTL)
	members := make([]*member, len(d.nodes))
	var all sync.WaitGroup
	for _, n := range d.nodes {
		members[n.place] = &member{Findings: driverkit.Findings{Node: n.name}, node: n}
		all.Go(func() { members[n.place].examine(ctx, ttl) })
	}
	all.Wait()
	whole := d.examineCluster(ctx, members, ttl)
	whole.CheckFileModes(d.secrets...)
	for _, m := range members {
		whole.Found = append(whole.Found, m.Found...)
	}
	return whole.Found
}

// member is the doctor's check of one member.
type member struct {
	driverkit.Findings
	node   *node
	status *pb.StatusResponse // nil: no answer
}

// examine asks a member for its state and checks it.
func (m *member) examine(ctx context.Context, ttl time.Duration) {
	ask := func() error {
		return m.node.tryRequest(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) (err error) {
			m.status, err = pb.NewMaintenanceClient(c.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
			return err
		})
	}
	if err := ask(); err != nil {
		m.status = nil
		m.Fault("reach", err)
		return
	}
	if h := m.status.GetHeader(); h.GetClusterId() == 0 && h.GetMemberId() == 0 {
		m.status = nil
		m.Fault("reach", errNoEtcd)
		return
	}
	m.OK("reach", "answers")
	if err := m.CheckRoundTrip(pace.RequestTime(ttl, pace.Members), ask); err != nil {
		m.status = nil
		m.Fault("reach", err)
		return
	}
	m.checkVersion(m.status.Version)
	m.checkRole()
	m.checkSpace()
	m.checkTLS(ctx)
}

// checkVersion reports server versions with faults from which the driver cannot protect itself.
func (m *member) checkVersion(text string) {
	parts := strings.SplitN(text, ".", 3)
	major, _ := strconv.Atoi(parts[0])
	minor, patch := 0, 0
	if len(parts) == 3 {
		minor, _ = strconv.Atoi(parts[1])
		number, _, _ := strings.Cut(parts[2], "-")
		patch, _ = strconv.Atoi(number)
	}
	switch {
	case major < 3 || major == 3 && minor < 4:
		m.Add("version", driver.VerdictFault, "it is etcd "+text, "update it to 3.5 or newer")
	case major == 3 && (minor == 4 && patch < 31 || minor == 5 && patch < 13):
		m.Add("version", driver.VerdictWarning, "it is etcd "+text+", in which a leader that has stood still may end leases that another has renewed",
			"update it: fixed in 3.4.31 and 3.5.13")
	default:
		m.OK("version", "etcd %s", text)
	}
}

// checkRole checks that the member may vote.
func (m *member) checkRole() {
	s := m.status
	switch {
	case s.Leader == 0:
		m.Add("leader", driver.VerdictFault, "it knows of no leader: too few members reach each other",
			"start the members that are down, or fix the network between them")
	case s.IsLearner:
		m.Add("leader", driver.VerdictFault, "it is a learner, which answers no request for locks", "promote it, or leave it out of the endpoints")
	case s.RaftIndex > s.RaftAppliedIndex+farBehind:
		m.Add("leader", driver.VerdictWarning, fmt.Sprintf("it is %d entries behind", s.RaftIndex-s.RaftAppliedIndex), "look at its disk and processor")
	default:
		m.OK("leader", "follows or leads")
	}
}

// checkSpace checks that there is space for more keys.
func (m *member) checkSpace() {
	s := m.status
	switch {
	case m.hasAlarm():
		m.Add("alarm", driver.VerdictFault, "it has an alarm: "+strings.Join(s.Errors, ", "),
			"for NOSPACE: etcdctl compact, defrag, and then alarm disarm; for CORRUPT: replace the member")
	case s.DbSizeQuota > 0 && s.DbSize > s.DbSizeQuota/10*9:
		m.Add("alarm", driver.VerdictWarning, fmt.Sprintf("%d MB of %d MB are used", s.DbSize>>20, s.DbSizeQuota>>20),
			"compact and defragment it, or raise the quota")
	default:
		m.OK("alarm", "none, %d MB used", s.DbSize>>20)
	}
}

func (m *member) hasAlarm() bool { return m.status != nil && len(m.status.Errors) > 0 }

// checkTLS checks over a new connection whether TLS protects the password, and whether certificates end soon.
func (m *member) checkTLS(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pace.CallTime())
	defer cancel()
	conn, config, err := m.node.connect(ctx)
	if err != nil {
		m.Fault("tls", err)
		return
	}
	defer conn.Close()
	m.CheckTLS(conn, m.node.password != "", config)
}

// examineCluster checks what concerns the whole cluster.
func (d *Driver) examineCluster(ctx context.Context, members []*member, ttl time.Duration) driverkit.Findings {
	var whole driverkit.Findings
	first := -1
	for i, m := range members {
		if m.status == nil {
			continue
		}
		if first < 0 {
			first = i
		}
		if was := members[first]; m.status.Header.ClusterId != was.status.Header.ClusterId {
			m.Add("distinct", driver.VerdictFault, "it belongs to another cluster than "+was.Node+": their locks do not exclude one another",
				"name members of one cluster")
		}
	}
	if ttl < calmTTL {
		whole.Add("ttl", driver.VerdictWarning, fmt.Sprintf("an election takes a second or two, and a TTL of %v may not outlast it", ttl), "take 5 s or more")
	}
	if first < 0 {
		return whole
	}
	if err := d.callAny(ctx, pace.CallTime(), d.rehearseWrites); errors.Is(err, errForeign) {
		return whole // already reported
	} else if errors.Is(err, driver.ErrAuth) {
		whole.Fault("rights", err)
	} else if err != nil {
		whole.Fault("quorum", err)
	} else {
		whole.OK("rights", "to read and write below %q", d.prefix)
		d.countMembers(ctx, &whole)
		if !slices.ContainsFunc(members, (*member).hasAlarm) { // with an alarm they grant nothing
			d.checkMinTTL(ctx, &whole, ttl)
		}
	}
	return whole
}

// rehearseWrites sends the writes that locks need, under a condition that fails: the cluster checks the
// permissions and writes nothing.
func (d *Driver) rehearseWrites(ctx context.Context, c *clientv3.Client) error {
	key := d.folderOf("holdfast") + "~probe"
	resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), "<", 0)).
		Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit() // a put would fail without space
	if err == nil && resp.Succeeded {
		err = errors.New("a key has a version below 0")
	}
	return err
}

// checkMinTTL compares the TTL with the lease that the servers grant for it.
func (d *Driver) checkMinTTL(ctx context.Context, whole *driverkit.Findings, ttl time.Duration) {
	var granted loan
	if err := d.callAny(ctx, pace.CallTime(), grantRequest(ttl, &granted)); err != nil {
		whole.Fault("floor", err)
		return
	}
	defer d.revokeLease(granted)
	if err := granted.tooLong(ttl); err != nil {
		whole.Fault("floor", err)
		return
	}
	whole.OK("floor", "leases of %v are granted", granted.ttl)
}

// countMembers reports members that the URL does not name.
func (d *Driver) countMembers(ctx context.Context, whole *driverkit.Findings) {
	voters := 0
	err := d.callAny(ctx, pace.CallTime(), func(ctx context.Context, c *clientv3.Client) error {
		resp, err := pb.NewClusterClient(c.ActiveConnection()).MemberList(ctx, &pb.MemberListRequest{})
		voters = 0
		if err == nil {
			for _, m := range resp.Members {
				if !m.IsLearner {
					voters++
				}
			}
		}
		return err
	})
	switch {
	case err != nil:
		whole.Add("members", driver.VerdictSkipped, "the members cannot be listed: "+err.Error(), "")
	case voters > len(d.nodes):
		whole.Add("members", driver.VerdictWarning, fmt.Sprintf("the cluster has %d members, and %d are named: clients stop when those are down",
			voters, len(d.nodes)), "name all of them")
	default:
		whole.OK("members", "all %d are named", voters)
	}
}
