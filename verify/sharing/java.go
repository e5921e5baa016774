package main

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/verify/interop/foreign"
)

// ways are from where to where a service moves, on which key.
var ways = map[string]struct {
	key      string // as Holdfast names it
	from, to Side
}{
	"redsync":  {"shared", Redsync, ManyClients},
	"redisson": {"shared", Side{"RLock", javaWorkers("redisson")}, LikeJava},
	"shedlock": {"job-lock:default:shared", Side{"ShedLock", javaWorkers("shedlock")}, ManyClients},
}

// javaWorkers are threads of one program in Java, each with a client of its own, as a process has.
func javaWorkers(library string) func(context.Context, []string, int) ([]worker, func(), error) {
	return func(ctx context.Context, addrs []string, n int) (out []worker, stop func(), err error) {
		java, err := foreign.Start(ctx, "java", library, addrs, "shared", 0, n)
		if err != nil {
			return nil, nil, err
		}
		obey := func(i int, verb string) error {
			said, err := java.Do(i, verb)
			if err == nil && said != verb {
				err = fmt.Errorf("%s of %s: %s", verb, library, said)
			}
			return err
		}
		for i := range n {
			out = append(out, func(context.Context, string) (func() error, error) {
				if err := obey(i, "lock"); err != nil {
					return nil, err
				}
				return func() error { return obey(i, "unlock") }, nil
			})
		}
		return out, java.Stop, nil
	}
}
