package etcd_test

import _ "unsafe"

// The contexts of watches in etcd's client end with a channel that is never closed. It was created outside of
// all bubbles, so a goroutine of a bubble that waits for it stops virtual time. A nil channel never ends
// either.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

func init() { valCtxCh = nil }
