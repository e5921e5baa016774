package driverkit

import "github.com/holdfast-go/holdfast/internal/quorum"

// Block is the number of tokens of one grant: one for each holder that the client may pass the grant on to.
const Block = quorum.Block

// InBlock reports whether token belongs to the block that begins at base.
func InBlock(base, token int64) bool { return base <= token && token < base+Block }
