//go:build !unix

package redis_test

import "errors"

// stop and resume need signals that this system does not have.
func (*waiter) stop() error   { return errors.ErrUnsupported }
func (*waiter) resume() error { return errors.ErrUnsupported }
