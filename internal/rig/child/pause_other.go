//go:build !unix

package child

import "errors"

// Pause stops the process, where the system can do that. Resume has it go on.
func (p *Process) Pause() error { return errors.ErrUnsupported }

// Resume undoes Pause.
func (p *Process) Resume() error { return errors.ErrUnsupported }
