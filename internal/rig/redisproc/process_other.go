//go:build !unix

package redisproc

import "errors"

func (p *process) pause() error     { return errors.ErrUnsupported }
func (p *process) resume() error    { return errors.ErrUnsupported }
func (p *process) interrupt() error { return errors.ErrUnsupported }
