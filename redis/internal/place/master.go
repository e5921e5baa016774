package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/driverkit"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redis/internal/server"
)

// Master is the master that Sentinels name or, without Sentinels, the master among some servers.
type Master struct {
	Fixed
	Sentinels          []string
	Watched            string // the Sentinels' name for the master
	Username, Password string // for the Sentinels
	Servers            []string

	known atomic.Pointer[string] // master at the last login; nil: none
}

// Name implements Place.
func (p *Master) Name() string {
	if len(p.Sentinels) > 0 {
		return p.Watched + "@" + p.Sentinels[0]
	}
	return strings.Join(p.Servers, ",")
}

// Locate implements Place.
func (p *Master) Locate(ctx context.Context) (string, error) {
	if len(p.Sentinels) > 0 {
		return p.askSentinels(ctx)
	}
	masters, errs := p.findMasters(ctx)
	switch {
	case len(masters) == 0:
		return "", fmt.Errorf("none of its servers is a master: %w", joinErrors(errs))
	case len(masters) > 1:
		return "", server.Advise(fmt.Errorf("%s are all masters", strings.Join(masters, " and ")), "make all but one replicas of that one (REPLICAOF)")
	}
	return masters[0], nil
}

// Login implements Place.
func (p *Master) Login(ctx context.Context, addr string, l *resp.Conn) (map[string]string, error) {
	hello, err := p.Fixed.Login(ctx, addr, l)
	if err == nil && hello["role"] == "master" {
		p.known.Store(&addr)
	}
	return hello, err
}

// Role implements Place.
func (p *Master) Role(hello, info map[string]string) (map[string]error, error) {
	return checkFailoverMaster(false, hello, info)
}

// Replaced implements Place.
func (p *Master) Replaced() bool { return true }

// Moved implements Place. It asks one Sentinel, and the others if that one names another server: an isolated
// master cannot know that another was promoted.
func (p *Master) Moved(ctx context.Context, addr string) bool {
	if len(p.Sentinels) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if named, err := p.Ask(ctx, p.Sentinels[rand.N(len(p.Sentinels))]); err != nil || named == addr {
		return false
	}
	named, err := p.Locate(ctx)
	return err == nil && named != addr
}

// Permissions implements Place.
func (p *Master) Permissions() string { return " +wait" }

// At implements Place.
func (p *Master) At(addr string, err error) error { return fmt.Errorf("%s: %w", addr, err) }

// askSentinels returns the server that the Sentinels name as the master. A client sends its password there, so
// more than half of the Sentinels must name it. Without such a majority it is the server with the most votes,
// unless another has as many, or late Sentinels may name another. If these stay silent, askSentinels returns
// the server of this client's last login.
func (p *Master) askSentinels(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout/2)
	type answer struct {
		sentinel, addr string
		err            error
	}
	answers := make(chan answer, len(p.Sentinels))
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for _, sentinel := range p.Sentinels {
		all.Go(func() {
			addr, err := p.Ask(ctx, sentinel)
			answers <- answer{sentinel, addr, err}
		})
	}
	votes := make(map[string][]string) // by server, the Sentinels that name it
	var errs []error
	late := 0
	for range p.Sentinels {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			if errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, context.Canceled) {
				late++ // the Sentinel may still name another server
			}
			continue
		}
		votes[a.addr] = append(votes[a.addr], a.sentinel)
		if len(votes[a.addr]) > len(p.Sentinels)/2 {
			return a.addr, nil
		}
	}
	addrs := slices.SortedFunc(maps.Keys(votes), func(a, b string) int {
		return cmp.Or(len(votes[b])-len(votes[a]), strings.Compare(a, b))
	})
	switch {
	case len(addrs) == 0:
		return "", fmt.Errorf("no Sentinel names the master %s: %w", p.Watched, joinErrors(errs))
	case len(addrs) > 1 && len(votes[addrs[0]]) == len(votes[addrs[1]]):
		return "", p.undecidedError("the Sentinels disagree", addrs, votes, errs)
	case late > 0 && (p.known.Load() == nil || *p.known.Load() != addrs[0]):
		return "", p.undecidedError("less than half of the Sentinels have answered", addrs, votes, errs)
	}
	return addrs[0], nil
}

// undecidedError returns the error if no server counts as the master, with the answer of each Sentinel.
func (p *Master) undecidedError(why string, addrs []string, votes map[string][]string, errs []error) error {
	var says []string
	for _, addr := range addrs {
		says = append(says, fmt.Sprintf("%s is named by %s", addr, strings.Join(votes[addr], " and ")))
	}
	for _, err := range errs {
		says = append(says, err.Error())
	}
	return server.Advise(fmt.Errorf("%s about the master %s: %s", why, p.Watched, strings.Join(says, "; ")),
		"start or repair the others, or list only Sentinels that are well")
}

// Ask asks one Sentinel for the master.
func (p *Master) Ask(ctx context.Context, sentinel string) (addr string, err error) {
	err = p.Sentinel(ctx, sentinel, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", p.Watched}, func(v resp.Value) error {
		if v.Null {
			return server.UnfitError("SENTINEL MASTERS lists the masters that it knows", "it knows no master %s", p.Watched)
		}
		list, _ := v.Decode().([]any)
		if len(list) != 2 {
			return resp.Unexpected(resp.ErrShape)
		}
		host, _ := list[0].(string)
		port, _ := list[1].(string)
		if !driverkit.IsDialable(host, port) {
			return resp.Unexpected(errors.New("it names no address"))
		}
		addr = net.JoinHostPort(host, port)
		return nil
	})
	return addr, err
}

// Sentinel sends one command to a Sentinel over a new connection, and passes the answer to read.
func (p *Master) Sentinel(ctx context.Context, addr string, cmd []string, read func(resp.Value) error) error {
	err := p.Visit(ctx, addr, func(l *resp.Conn) error {
		cmds := append(server.AuthCommands(p.Username, p.Password), cmd)
		values, err := l.Do(cmds...)
		if err != nil {
			return err
		}
		switch err := server.FirstError(cmds, values); {
		case err == nil:
			return read(values[len(cmds)-1])
		case strings.Contains(err.Error(), "unknown command"):
			return server.UnfitError("give the addresses of Sentinels (port 26379, as a rule), or redis:// for one server", "it is not a Sentinel")
		default:
			if err = server.AddAdvice(err, p.TLS != nil); errors.Is(err, driver.ErrAuth) {
				err = server.Advise(err, "Sentinels have a user and password of their own: sentinel_username and sentinel_password")
			}
			return err
		}
	})
	if err != nil {
		err = fmt.Errorf("sentinel %s: %w", addr, err)
	}
	return err
}

// findMasters returns the servers that report to be masters, in order.
func (p *Master) findMasters(ctx context.Context) (found []string, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout/2)
	defer cancel()
	found, errs = make([]string, len(p.Servers)), make([]error, len(p.Servers))
	var all sync.WaitGroup
	for i, addr := range p.Servers {
		all.Go(func() {
			if err := p.isMaster(ctx, addr); err != nil {
				errs[i] = fmt.Errorf("%s: %w", addr, err)
			} else {
				found[i] = addr
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(found, func(s string) bool { return s == "" }), slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (p *Master) isMaster(ctx context.Context, addr string) error {
	return p.Visit(ctx, addr, func(l *resp.Conn) error {
		hello, err := p.Login(ctx, addr, l)
		if err == nil && hello["role"] != "master" {
			err = errDemoted
		}
		return err
	})
}

// joinErrors returns one error for the errors of several servers. It is a lasting error if most of them are.
func joinErrors(errs []error) error {
	lasts := 0
	for _, err := range errs {
		if server.IsPermanent(err) {
			lasts++
		}
	}
	if lasts > len(errs)/2 {
		text := errs[0]
		for _, err := range errs[1:] {
			text = fmt.Errorf("%w; %w", text, err)
		}
		return text
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
