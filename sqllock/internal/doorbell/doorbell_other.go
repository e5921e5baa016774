//go:build !linux

package doorbell

// Bell is the socket of one process for one file.
type Bell struct{}

// Open returns ErrUnsupported.
func Open(string, string, func(string)) (*Bell, error) { return nil, ErrUnsupported }

// CheckSupport returns ErrUnsupported.
func CheckSupport(string) error { return ErrUnsupported }

// Ring does nothing.
func (*Bell) Ring(string, string) (dead bool) { return false }

// Close does nothing.
func (*Bell) Close() {}
