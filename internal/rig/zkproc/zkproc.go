// Package zkproc starts real ZooKeeper ensembles for tests, on free ports of 127.0.0.1, each in its own
// folder. It never touches a server that already runs.
//
// Do not run ZooKeeper like this in production: nothing is synced to disk, and ticks are short.
package zkproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/rig/child"
	"github.com/holdfast-go/holdfast/internal/rig/faultproxy"
)

// ErrNotInstalled is returned by Start when there is no ZooKeeper or no Java on this machine.
var ErrNotInstalled = errors.New("ZooKeeper is not installed (on Debian and Ubuntu: apt-get install libzookeeper-java libslf4j-java default-jre-headless)")

const (
	startTimeout = 2 * time.Minute
	probeTime    = time.Second
	jars         = "/usr/share/java/"
	// programVariable names a script that calls java with the jars of another ZooKeeper, as tools/servers
	// fetches one.
	programVariable = "HOLDFAST_ZOOKEEPER_SERVER"
)

// settings are the settings of all members. A tick is a quarter of the default. Sessions last at least two
// ticks, as by default, and up to a minute, which is more than the default.
const settings = `tickTime=500
initLimit=20
syncLimit=10
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
4lw.commands.whitelist=srvr,mntr
forceSync=no
admin.enableServer=false
`

// Ensemble is a set of ZooKeeper members that know each other.
type Ensemble struct {
	Members []*Member
	Mesh    *faultproxy.Mesh // between the members; nil unless StartMeshed was called

	dir      string
	reserved []*child.Reservation
}

// Member is one ZooKeeper process. After it was killed, Restart starts it again with its data.
type Member struct {
	*child.Process
	Addr string // address for clients, without TLS
	Safe string // address for clients, with TLS; empty without a TLS port
	dir  string
}

// Start starts an ensemble of n members, or a standalone server if n is 1. more are further lines of their
// configuration, such as "maxSessionTimeout=5000". "secureClientPort" without a value gets a free port. It
// blocks until every member answers, ctx ends or two minutes have passed.
func Start(ctx context.Context, n int, more ...string) (*Ensemble, error) {
	return launchEnsemble(ctx, n, false, more)
}

// StartMeshed is Start for members that Ensemble.Mesh can cut off from each other.
func StartMeshed(ctx context.Context, n int, more ...string) (*Ensemble, error) {
	return launchEnsemble(ctx, n, true, more)
}

func launchEnsemble(ctx context.Context, n int, meshed bool, more []string) (*Ensemble, error) {
	java, named, err := child.Find(programVariable, "java")
	if err == nil && !named {
		_, err = os.Stat(jars + "zookeeper.jar")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	e, err := child.OnFreePorts(ctx, pace.Scale(startTimeout), func(ctx context.Context) (*Ensemble, error) { return startEnsemble(ctx, java, n, meshed, more) })
	if err != nil {
		return nil, fmt.Errorf("start ZooKeeper: %w", err)
	}
	return e, nil
}

func startEnsemble(ctx context.Context, java string, n int, meshed bool, more []string) (e *Ensemble, err error) {
	e = &Ensemble{}
	if e.dir, err = os.MkdirTemp("", "holdfast-zk-"); err != nil {
		return e, err
	}
	if e.reserved, err = child.MemberPorts.Reserve(4 * n); err != nil {
		return e, err
	}
	addrs := child.Addrs(e.reserved)
	var common strings.Builder // configuration of all members
	common.WriteString(settings)
	var peers [][]string
	for i := range n {
		peers = append(peers, addrs[4*i:4*i+2])
		if n > 1 { // for the other members, and for elections
			_, port, _ := net.SplitHostPort(addrs[4*i+1])
			fmt.Fprintf(&common, "server.%d=%s:%s\n", i+1, addrs[4*i], port)
		}
	}
	if meshed {
		if e.Mesh, err = faultproxy.NewMesh(peers); err != nil {
			return e, err
		}
	}
	for i := range n {
		m := &Member{Addr: addrs[4*i+2], dir: filepath.Join(e.dir, strconv.Itoa(i+1))}
		var way []string // Java properties for the connections between members
		if meshed {
			host, port, _ := net.SplitHostPort(e.Mesh.Front(i))
			way = []string{"-DsocksProxyHost=" + host, "-DsocksProxyPort=" + port, "-DsocksNonProxyHosts="}
		}
		if err := m.writeConfig(i+1, common.String(), addrs[4*i+3], more); err != nil {
			return e, err
		}
		m.Process = &child.Process{Program: child.Program{
			Cmd: func() *exec.Cmd { return m.newCommand(java, way) }, Ready: m.checkReady,
			Output: filepath.Join(m.dir, "log"), Signal: syscall.SIGKILL, Limit: pace.Scale(startTimeout),
		}}
		e.Members = append(e.Members, m)
		if err := m.Begin(); err != nil {
			return e, err
		}
	}
	for _, m := range e.Members {
		if err := m.Await(ctx); err != nil {
			return e, err
		}
	}
	return e, nil
}

// writeConfig creates the member's folder with its configuration: the common lines, its own lines, and more.
// If more has the port for TLS, the member also listens on safe.
func (m *Member) writeConfig(id int, common, safe string, more []string) error {
	host, port, _ := net.SplitHostPort(m.Addr)
	var config strings.Builder
	config.WriteString(common + "dataDir=" + m.dir + "\nclientPortAddress=" + host + "\nclientPort=" + port + "\n")
	for _, line := range more {
		if line == "secureClientPort" {
			m.Safe = safe
			host, port, _ := net.SplitHostPort(m.Safe)
			line += "=" + port + "\nsecureClientPortAddress=" + host
		}
		config.WriteString(line + "\n")
	}
	return errors.Join(os.Mkdir(m.dir, 0o700),
		os.WriteFile(filepath.Join(m.dir, "myid"), []byte(strconv.Itoa(id)), 0o600),
		os.WriteFile(filepath.Join(m.dir, "zoo.cfg"), []byte(config.String()), 0o600))
}

// newCommand returns the command of a small process that starts soon. A program that the environment names has
// its own jars.
func (m *Member) newCommand(java string, way []string) *exec.Cmd {
	path := jars + "zookeeper.jar:" + jars + "slf4j-simple.jar"
	args := []string{"-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}
	if m.Safe != "" { // only Netty supports TLS, and the manifest names a part of it
		path += ":" + jars + "netty-codec.jar:" + jars + "netty-resolver.jar"
		args = append(args, "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
	}
	args = append(args, way...)
	if os.Getenv(programVariable) == "" {
		args = append(args, "-cp", path)
	}
	cmd := exec.Command(java, append(args, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(m.dir, "zoo.cfg"))...)
	cmd.Dir = m.dir
	return cmd
}

// Serves reports whether the member serves clients: it leads, or follows a leader.
func (m *Member) Serves() bool { return m.readMode() != "" }

func (m *Member) checkReady(ctx context.Context) error {
	if !m.Serves() {
		return errors.New("it does not serve clients yet")
	}
	if m.Safe == "" {
		return nil
	}
	return m.warmUp(ctx)
}

// warmUp makes the member do a first TLS handshake. It listens for TLS a little later than without, and on a
// busy machine the first handshake of a Java machine takes seconds. The member rejects a client without a
// certificate.
func (m *Member) warmUp(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", m.Safe)
	if err != nil {
		return err
	}
	defer conn.Close()
	tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	return ctx.Err()
}

// readMode returns the role of the member: leader, follower or standalone; "" if it does not serve.
func (m *Member) readMode() string {
	_, mode, _ := strings.Cut(m.Ask("srvr"), "\nMode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// Ask sends one of the four-letter commands, and returns the answer; "" if there was none.
func (m *Member) Ask(command string) string {
	conn, err := net.DialTimeout("tcp", m.Addr, pace.Scale(probeTime))
	if err != nil {
		return ""
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(pace.Scale(probeTime)))
	io.WriteString(conn, command)
	text, _ := io.ReadAll(conn)
	return string(text)
}

// IsWhole reports whether all other members follow a leader, so that one of three may fail. The leader also
// counts members that have not finished joining, which may still fail.
func (e *Ensemble) IsWhole() bool {
	leader := e.Leader()
	if leader == nil || len(e.Members) > 1 && !strings.Contains(leader.Ask("mntr"), fmt.Sprintf("zk_synced_followers\t%d\n", len(e.Members)-1)) {
		return false
	}
	return !slices.ContainsFunc(e.Members, func(m *Member) bool { return !m.Serves() })
}

// Leader returns the member that leads the others; nil: no member reports that it does.
func (e *Ensemble) Leader() *Member {
	for _, m := range e.Members {
		if mode := m.readMode(); mode == "leader" || mode == "standalone" {
			return m
		}
	}
	return nil
}

// Addrs returns the addresses of the members for clients.
func (e *Ensemble) Addrs() (addrs []string) {
	for _, m := range e.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Data returns the folder with the member's snapshots.
func (m *Member) Data() string { return filepath.Join(m.dir, "version-2") }

// Stop kills all members and removes their folder. A second Stop does nothing.
func (e *Ensemble) Stop() (err error) {
	for _, m := range e.Members {
		m.Kill()
	}
	child.Release(e.reserved)
	if e.Mesh != nil {
		err = e.Mesh.Close()
	}
	if e.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}
