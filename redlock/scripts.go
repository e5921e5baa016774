package redlock

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

// script is one Lua script. Scripts are plain, without a shebang line, which
// would have the server refuse even a release when its memory is full.
type script struct {
	text string
	sha  string
}

func newScript(parts ...string) *script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	//go:embed scripts/block.lua
	blockLua string
	//go:embed scripts/pass.lua
	passLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/commit.lua
	commitLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/force.lua
	forceLua string
	//go:embed scripts/drop.lua
	dropLua string
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/probe.lua
	probeLua string
)

var (
	acquireScript = newScript(blockLua, acquireLua)
	commitScript  = newScript(commitLua)
	renewScript   = newScript(renewLua)
	releaseScript = newScript(blockLua, passLua, releaseLua)
	forceScript   = newScript(blockLua, passLua, forceLua)
	dropScript    = newScript(dropLua)
	inspectScript = newScript(inspectLua)
	probeScript   = newScript(probeLua)
)

// scripts is what every checked connection has loaded.
var scripts = []*script{
	acquireScript, commitScript, renewScript, releaseScript, forceScript, dropScript, inspectScript, probeScript,
}
