package holdfast

// StopWatchdog stops all renewals, like a machine without processor time.
func (c *Client) StopWatchdog() { c.keeper.Stop() }
