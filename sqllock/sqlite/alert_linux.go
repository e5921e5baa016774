package sqlite

// Alert implements driver.Alerter, on Linux alone: elsewhere there is no bell. Nor does it tell anything where a folder takes no socket.
func (d *Driver) Alert(fn func(owner, why string)) { d.alert.Store(&fn) }
