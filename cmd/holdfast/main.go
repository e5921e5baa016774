// Holdfast runs commands under a lock that several machines share, and looks
// after such locks. See "holdfast help".
package main

import (
	"os"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
	_ "github.com/holdfast-go/holdfast/cmd/holdfast/internal/helper" // may take over
)

func main() {
	code := cli.Main(os.Args, cli.System())
	os.Exit(int(code))
}
