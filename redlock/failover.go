package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/dsn"
	"github.com/holdfast-go/holdfast/internal/member"
	"github.com/holdfast-go/holdfast/internal/quorum/engine"
	"github.com/holdfast-go/holdfast/redlock/internal/format"
	"github.com/holdfast-go/holdfast/redlock/internal/link"
	"github.com/holdfast-go/holdfast/redlock/internal/place"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// Failover says where the master of a node is found, if another server may take its
// place. Give either Sentinels and Master, or Servers.
type Failover struct {
	// Sentinels are the addresses, host:port, of Sentinels. They are asked at each new
	// connection, and every few seconds, which server is the master.
	Sentinels []string
	// Master is the name that the Sentinels have for it, such as mymaster.
	Master string
	// Username and Password are for Sentinels that ask for them. Those of the servers
	// are in Node or Options. TLS of Options is for both.
	Username, Password string
	// Servers, host:port, are a master and its replicas where no Sentinel looks after
	// them: the one whose role is master is the node.
	Servers []string
}

// check finds what is wrong with f, before anything is dialled.
func (f *Failover) check() error {
	addrs := slices.Concat(f.Sentinels, f.Servers)
	switch {
	case len(f.Sentinels) > 0 && len(f.Servers) > 0:
		return fmt.Errorf("%w: Failover has Sentinels and Servers; give one of them", driver.ErrInvalid)
	case len(addrs) == 0:
		return fmt.Errorf("%w: Failover has neither Sentinels nor Servers; give the addresses of one of them", driver.ErrInvalid)
	case len(f.Sentinels) > 0 && !nameOfMaster.MatchString(f.Master): // it is not shown, as it may be part of a password
		return fmt.Errorf("%w: the name of the master is missing, or has more than letters, digits, dots, dashes and underscores; "+
			"give the one that the Sentinels have, as in redis+sentinel://host:26379/mymaster", driver.ErrInvalid)
	}
	for i, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		switch {
		case err != nil || !dsn.Dialable(cmp.Or(host, "localhost"), port):
			return fmt.Errorf("%w: address %d of %d of the Sentinels or servers is not host:port, such as localhost:26379", driver.ErrInvalid, i+1, len(addrs))
		case slices.Contains(addrs[:i], addr):
			return fmt.Errorf("%w: %s is listed twice; list each once", driver.ErrInvalid, addr)
		}
	}
	return nil
}

// nameOfMaster is what Sentinels take for a name.
var nameOfMaster = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// place is where the master is found.
func (f *Failover) place(net *place.Net) *place.Master {
	return &place.Master{
		Fixed: place.Fixed{Net: net}, Sentinels: f.Sentinels, Watched: f.Master, Username: f.Username, Password: f.Password, Servers: f.Servers,
	}
}

var errMoved = errors.New("another server is the master now")

// verify hangs up once the server at the other end is the node no more. One that was
// demoted says so, also to a client that writes nothing; that another was promoted is
// what a Sentinel says, as a master that is cut off cannot know.
func (n *node) verify(l *session) {
	l.Call(link.NewCall([][]string{{"INFO", "replication"}}, func(c *link.Call) {
		if c.Err != nil {
			return
		}
		text, ok := c.Replies[0].(string)
		info := server.ParseInfo(text)
		if since := server.Promotion(info); ok && (info["role"] != "master" || since != "" && since != l.since) {
			l.HangUp(errMoved)
		}
	}))
	n.d.work.Go(func() {
		if n.place.Moved(n.d.ctx, l.server) {
			l.HangUp(errMoved)
		}
	})
}

// confirmMost is how long a replica may take to say that it has what its master did.
const confirmMost = time.Second

// confirm waits until a replica has what the server of l had done for lock before, and returns nil at once for a node that does
// not fail over. It asks over a connection of its own, because WAIT keeps all that comes after it on its connection waiting.
// What it writes comes after what was done, and is what it waits for.
func (n *node) confirm(ctx context.Context, l *session, lock engine.Lock) error {
	if !n.place.Replaced() {
		return nil
	}
	if l == nil || n.link.Load() != l {
		return errMoved
	}
	ctx, cancel := context.WithTimeout(ctx, 2*confirmMost)
	defer cancel()
	g := n.d.gate
	conn, err := n.net.Connect(ctx, l.server)
	if err != nil {
		return server.Mend(err, g.opts.TLS != nil)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := n.place.Login(ctx, l.server, conn); err != nil {
		return err
	}
	probe := g.opts.probeKeys(n.engine.Client() + n.place.Beside(lock.Key)).Key
	values, err := server.Ask(conn,
		[]string{"INFO"}, []string{"SET", probe, "", "PX", "1000"}, []string{"DEL", probe}, []string{"WAIT", "1", format.Millis(int64(confirmMost))})
	if err != nil {
		return err
	}
	info := server.ParseInfo(string(values[0].Text))
	has, _ := values[3].Int()
	switch {
	case !member.SameRun(l.run, member.Run(info["run_id"], server.Promotion(info))):
		return errMoved
	case has > 0:
		return nil
	case info["connected_slaves"] != "0":
		return fmt.Errorf("no replica has answered within %v", confirmMost)
	}
	return n.place.NoReplica(conn)
}
