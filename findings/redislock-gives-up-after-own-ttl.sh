#!/usr/bin/env bash
# redislock: with a retry strategy and no deadline, Obtain gives up after the TTL of the requested lock.
#
# Versions: bsm/redislock 0.10.0 with go-redis 9.22.1 on Redis 7.0.
# Expected: the documentation of LinearBackoff: it retries at regular intervals; another strategy, LimitRetry, bounds the retries. The TTL
#           is the lifetime of the lock once obtained.
# Seen:     a background context and LinearBackoff: Obtain(ttl 1 s) fails with a deadline that the caller never set, while the holder
#           still has the lock. The same call under a context with a deadline of an hour waits until the holder releases.
# Locks:    a user who shortens the TTL, to lose less after a crash, also shortens the wait; and a caller with a distant deadline waits
#           longer than a caller without one.
# Holdfast: the wait ends with the caller's context or by Options, and does not depend on the TTL.
# Output:   redislock-gives-up-after-own-ttl: as stated: no deadline: deadline exceeded; far deadline: obtained
. "$(dirname "$0")/lib.sh"
start_redis
export ADDR="127.0.0.1:$redis_port"
seen=$(run_go github.com/bsm/redislock@v0.10.0 github.com/redis/go-redis/v9@v9.22.1 <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func obtain(ctx context.Context, locker *redislock.Client) string {
	_, err := locker.Obtain(ctx, "job", time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(300 * time.Millisecond)})
	switch {
	case err == nil:
		return "obtained"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	default:
		return err.Error()
	}
}

func main() {
	background := context.Background()
	locker := redislock.New(redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")}))
	holder, err := locker.Obtain(background, "job", time.Hour, nil)
	must(err)

	fmt.Printf("no deadline: %s", obtain(background, locker))

	far, cancel := context.WithTimeout(background, time.Hour)
	defer cancel()
	go func() {
		time.Sleep(5 * time.Second)
		must(holder.Release(background))
	}()
	fmt.Printf("; far deadline: %s\n", obtain(far, locker))
}
GO
)
verdict 'no deadline: deadline exceeded; far deadline: obtained' "$seen" "$redis_version, redislock 0.10.0"
