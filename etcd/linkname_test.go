package etcd_test

import _ "unsafe"

// The contexts of the package's watches end with a channel that is never closed. It was made outside of all bubbles, and what
// waits for it inside of one keeps time from going on. With nil they never end either.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

func init() { valCtxCh = nil }
