package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// calmTTL is a TTL that outlasts an election.
const calmTTL = 6 * time.Second

// Diagnose implements driver.Doctor. It opens a session, and creates no node.
func (d *Driver) Diagnose(ctx context.Context, ttl time.Duration) []driver.Finding {
	if err := d.calls.Enter(); err != nil {
		return driverkit.ClosedFindings(err)
	}
	defer d.calls.Leave()
	ttl = cmp.Or(ttl, driverkit.DoctorTTL)
	patients := make([]*memberCheck, len(d.members))
	var all sync.WaitGroup
	for _, m := range d.members {
		patients[m.place] = &memberCheck{Findings: driverkit.Findings{Node: m.name}, member: m}
		all.Go(func() { patients[m.place].examine(ctx, d, ttl) })
	}
	all.Wait()
	whole := d.examineEnsemble(ctx, patients, ttl)
	whole.CheckFileModes(d.secrets...)
	for _, p := range patients {
		whole.Found = append(whole.Found, p.Found...)
	}
	return whole.Found
}

// memberCheck is the doctor's check of one member.
type memberCheck struct {
	driverkit.Findings
	member *member
	health health
}

// examine asks a member for its state and checks it.
func (p *memberCheck) examine(ctx context.Context, d *Driver, ttl time.Duration) {
	ask := func() (err error) {
		p.health, err = p.member.probe(ctx, pace.CallTime())
		return err
	}
	if err := ask(); err != nil && ctx.Err() != nil {
		p.Add("reach", driver.VerdictFault, "the doctor was stopped before it answered", "give the doctor more time")
		return
	} else if errors.Is(err, errNoQuorum) {
		p.OK("reach", "answers")
		p.Add("leader", driver.VerdictFault, err.Error(), "start the members that are down, or fix the network between them")
		return
	} else if stalled := new(driverkit.StallError); p.member.tls == nil && (errors.As(err, stalled) || errors.Is(err, errNotZooKeeper)) {
		p.Add("reach", driver.VerdictFault, err.Error(), "start it, or correct its address, or fix the network to it, or write zks:// if it speaks TLS on this port")
		return
	} else if err != nil {
		p.Fault("reach", err)
		return
	}
	p.OK("reach", "answers")
	if err := p.CheckRoundTrip(pace.RequestTime(ttl, pace.Members), ask); err != nil {
		p.Fault("reach", err)
		return
	}
	if p.health.mode == "" {
		p.Add("leader", driver.VerdictWarning, "it does not report the leader, so each renewal of a lease costs a connection", "add srvr to 4lw.commands.whitelist")
	} else {
		if len(d.members) == 1 && !p.health.alone() {
			p.OK("leader", "it is %s; each renewal takes a connection, as the only address may be that of a load balancer", p.health.mode)
		} else {
			p.OK("leader", "it is %s", p.health.mode)
		}
		p.checkVersion(p.health.version)
	}
	conn, err := p.member.dial(ctx)
	if err != nil {
		p.Fault("tls", explainError(ctx, err))
		return
	}
	defer conn.Close()
	config := p.member.tls
	if config != nil {
		if config, err = p.member.tlsConfig(); err != nil {
			p.Fault("tls", explainError(ctx, err))
			return
		}
	}
	p.CheckTLS(conn, d.auth != "", config)
}

// checkVersion reports a version that is too old for the driver.
func (p *memberCheck) checkVersion(text string) {
	number, _, _ := strings.Cut(text, "-")
	parts := append(strings.Split(number, "."), "0", "0", "0")
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	patch, _ := strconv.Atoi(parts[2])
	if major < 3 || major == 3 && (minor < 5 || minor == 5 && patch < 3) {
		p.Add("version", driver.VerdictFault, "it is ZooKeeper "+number+", which has no containers", "update it to 3.5.3 or newer")
		return
	}
	p.OK("version", "ZooKeeper %s", number)
}

// examineEnsemble runs the checks of the whole ensemble.
func (d *Driver) examineEnsemble(ctx context.Context, patients []*memberCheck, ttl time.Duration) (whole driverkit.Findings) {
	first, answers := "", false
	for _, p := range patients {
		answers = answers || p.health != health{}
		if p.health.leads() && first != "" && d.checkOneEnsemble(ctx) != nil {
			p.Add("distinct", driver.VerdictFault, "it leads another ensemble than "+first+": their locks do not exclude one another", "name members of one ensemble")
		} else if p.health.leads() && first == "" {
			first = p.member.name
		}
	}
	if ttl < calmTTL {
		whole.Add("ttl", driver.VerdictWarning, fmt.Sprintf("an election takes some seconds, and a TTL of %v may not outlast it", ttl), "take 6 s or more")
	}
	ctx, cancel := driverkit.WithLimit(ctx, pace.LookTime())
	defer cancel()
	s := d.sessionFor(ttl)
	defer d.releaseSession(s)
	_, err := s.awaitLink(ctx)
	switch {
	case errors.Is(err, driver.ErrInvalid):
		whole.Fault("sessions", err)
		return whole
	case err != nil && answers:
		whole.Fault("quorum", err)
	}
	if err != nil {
		return whole
	}
	whole.OK("sessions", "of %v are granted", ttl)
	if err := d.rehearseWrites(ctx, s); err != nil {
		whole.Fault("rights", err)
	} else {
		whole.OK("rights", "to create nodes below %s", d.root)
	}
	return whole
}

// rehearseWrites sends a transaction that creates a node and then fails: the servers check the permissions and
// create nothing.
func (d *Driver) rehearseWrites(ctx context.Context, s *session) error {
	for at := d.root; ; at = at[:strings.LastIndexByte(at, '/')] {
		r := createAttemptRequest(at+"/holdfast~probe", d.acl)
		if err := s.sendAll(ctx, r); err != nil {
			return err
		}
		if r.err != nil {
			return d.refusedError(r.err)
		}
		outcomes, err := r.errorCodes(2)
		switch {
		case err != nil:
			return err
		case outcomes[0] == codeNoNode && at != "": // the parent does not exist yet
			continue
		case outcomes[1] == codeNoNode:
			return nil
		}
		return d.refusedError(outcomes[0])
	}
}
