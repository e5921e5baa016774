package sqlite

// Alert implements driver.Alerter. There is a bell only on Linux, and only if the folder accepts a socket;
// otherwise fn is never called.
func (d *Driver) Alert(fn func(owner, reason string)) { d.alert.Store(&fn) }
