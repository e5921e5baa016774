// Package block has the size of a block of fencing tokens, which is the same for every service.
package block

// Size is how many tokens one grant has: one for each holder that the client may pass the grant to.
const Size = 32

// Has says whether token is one of the block that begins at base.
func Has(base, token int64) bool { return base <= token && token < base+Size }
