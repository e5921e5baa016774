package place

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/dsn"
	"github.com/holdfast-go/holdfast/internal/resp"
	"github.com/holdfast-go/holdfast/redlock/internal/server"
)

// Master is the master that Sentinels name, or the one among some servers where no Sentinel looks after them.
type Master struct {
	Fixed
	Sentinels          []string
	Watched            string // the name that the Sentinels have for it
	Username, Password string // for the Sentinels
	Servers            []string
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
	servers := p.Servers
	if len(servers) == 0 {
		var err error
		if servers, err = p.named(ctx); err != nil || len(servers) == 1 {
			return strings.Join(servers, ""), err
		}
	}
	masters, errs := p.masters(ctx, servers)
	switch {
	case len(masters) == 0:
		return "", fmt.Errorf("none of its servers is a master: %w", together(errs))
	case len(masters) > 1 && len(p.Servers) > 0:
		return "", server.Advise(fmt.Errorf("%s are all masters", strings.Join(masters, " and ")), "make all but one replicas of that one (REPLICAOF)")
	}
	return masters[0], nil
}

// Role implements Place.
func (p *Master) Role(hello, info map[string]string) (map[string]error, error) {
	return replaceable(false, hello, info)
}

// Replaced implements Place.
func (p *Master) Replaced() bool { return true }

// Moved implements Place. It asks one Sentinel, and the others where that one names another server: a master that is cut
// off cannot know that another was promoted.
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

// Rights implements Place.
func (p *Master) Rights() string { return " +wait" }

// At implements Place.
func (p *Master) At(addr string, err error) error { return fmt.Errorf("%s: %w", addr, err) }

// named are the servers that Sentinels name as the master: one, if more than half of the
// Sentinels agree, or else all that are named within half of the time, the one that is
// named most first. It needs no majority, as the server has to say itself that it is a
// master.
func (p *Master) named(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout/2)
	type answer struct {
		addr string
		err  error
	}
	answers := make(chan answer, len(p.Sentinels))
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for _, sentinel := range p.Sentinels {
		all.Go(func() {
			addr, err := p.Ask(ctx, sentinel)
			answers <- answer{addr, err}
		})
	}
	votes := make(map[string]int)
	var addrs []string
	var errs []error
	for range p.Sentinels {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		if votes[a.addr]++; votes[a.addr] == 1 {
			addrs = append(addrs, a.addr)
		}
		if votes[a.addr] > len(p.Sentinels)/2 {
			return []string{a.addr}, nil
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no Sentinel names the master %s: %w", p.Watched, together(errs))
	}
	slices.SortStableFunc(addrs, func(a, b string) int { return votes[b] - votes[a] })
	return addrs, nil
}

// Ask asks one Sentinel which server is the master.
func (p *Master) Ask(ctx context.Context, sentinel string) (addr string, err error) {
	err = p.Sentinel(ctx, sentinel, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", p.Watched}, func(v resp.Value) error {
		if v.Null {
			return server.Unfit("SENTINEL MASTERS lists those that it knows", "it knows no master %s", p.Watched)
		}
		list, _ := v.Decode().([]any)
		if len(list) != 2 {
			return resp.Unexpected(resp.ErrShape)
		}
		host, _ := list[0].(string)
		port, _ := list[1].(string)
		if !dsn.Dialable(host, port) {
			return resp.Unexpected(errors.New("it names no address"))
		}
		addr = net.JoinHostPort(host, port)
		return nil
	})
	return addr, err
}

// Sentinel sends one command to a Sentinel, over a connection of its own, and has read take the answer.
func (p *Master) Sentinel(ctx context.Context, addr string, cmd []string, read func(resp.Value) error) error {
	err := p.Visit(ctx, addr, func(l *resp.Conn) error {
		cmds := append(server.Auth(p.Username, p.Password), cmd)
		values, err := l.Do(cmds...)
		if err != nil {
			return err
		}
		switch err := server.FirstError(cmds, values); {
		case err == nil:
			return read(values[len(cmds)-1])
		case strings.Contains(err.Error(), "unknown command"):
			return server.Unfit("give the addresses of Sentinels (port 26379, as a rule), or redis:// for one server", "it is no Sentinel")
		default:
			if err = server.Mend(err, p.TLS != nil); errors.Is(err, driver.ErrAuth) {
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

// masters are those of some servers that say that they are masters, in the order of addrs.
func (p *Master) masters(ctx context.Context, addrs []string) (found []string, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout/2)
	defer cancel()
	found, errs = make([]string, len(addrs)), make([]error, len(addrs))
	var all sync.WaitGroup
	for i, addr := range addrs {
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

// together is one error for what is wrong with several servers. It is one that lasts if
// that is so for most of them.
func together(errs []error) error {
	lasts := 0
	for _, err := range errs {
		if server.Lasting(err) {
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
