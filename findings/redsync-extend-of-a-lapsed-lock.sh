#!/usr/bin/env bash
# redsync: Extend of an expired lock that nobody holds returns ErrTaken, "lock already taken"; Unlock returns the right error.
#
# Versions: redsync 4.18.1 with go-redis 9.22.1 on Redis 7.0.
# Expected: the documentation of the errors: ErrTaken for a lock that is taken on a quorum of nodes, ErrExtendFailed for a failed
#           extension, ErrLockAlreadyExpired for Unlock after the expiry.
# Seen:     the lock's key is gone and no client has the lock. Extend returns ErrTaken and not ErrExtendFailed, while Unlock in the same
#           state returns ErrLockAlreadyExpired.
# Locks:    a holder that reads "taken" as "another client works" waits or gives up, although its lock only expired and is free.
# Holdfast: Renew reports ErrLost, both for an expired lease and for a lock that another client took; ErrHeld only answers an attempt to
#           acquire.
# Output:   redsync-extend-of-a-lapsed-lock: as stated: keys 0, Extend: ErrTaken true, ErrExtendFailed false, Unlock: ErrLockAlreadyExpired true
. "$(dirname "$0")/lib.sh"
start_redis
export ADDR="127.0.0.1:$redis_port"
seen=$(run_go github.com/go-redsync/redsync/v4@v4.18.1 github.com/redis/go-redis/v9@v9.22.1 <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("ADDR")})
	mutex := redsync.New(goredis.NewPool(client)).NewMutex("job", redsync.WithExpiry(2*time.Second))
	must(mutex.Lock())
	for client.Exists(ctx, "job").Val() > 0 {
		time.Sleep(100 * time.Millisecond)
	}
	_, err := mutex.Extend()
	keys := client.DBSize(ctx).Val()
	var taken *redsync.ErrTaken
	_, unlockErr := mutex.Unlock()
	fmt.Printf("keys %d, Extend: ErrTaken %v, ErrExtendFailed %v, Unlock: ErrLockAlreadyExpired %v\n", keys,
		errors.As(err, &taken), errors.Is(err, redsync.ErrExtendFailed), errors.Is(unlockErr, redsync.ErrLockAlreadyExpired))
}
GO
)
verdict 'keys 0, Extend: ErrTaken true, ErrExtendFailed false, Unlock: ErrLockAlreadyExpired true' "$seen" "$redis_version, redsync 4.18.1"
