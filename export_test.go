package holdfast

// StopWatchdog makes the watchdog come too late for ever, as on a machine that is
// starved.
func (c *Client) StopWatchdog() { c.keeper.Stop() }
