package redlock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/dsn"
)

var errPath = invalid("the path of the URL is no database number, as in redis://localhost:6379/0; in a user or password write / as %%2F")

// apply takes from a URL what is for the whole set.
func (o *Options) apply(u *dsn.URL) (err error) {
	if o.database(u.Path) != nil {
		return errPath
	}
	for name, v := range u.Parameters {
		var err error
		switch name {
		case "prefix":
			o.Prefix = v
		case "bare":
			o.BareKeys, err = strconv.ParseBool(v)
		case "format":
			o.Format = Format(v)
		case "maxttl":
			o.MaxTTL, err = duration(v)
		case "timeout":
			o.Timeout, err = duration(v)
		case "quarantine":
			o.NoQuarantine, err = oneOf(v, "off", "on")
		case "down":
			o.AllowDown, err = oneOf(v, "allow", "refuse")
		case "eviction":
			o.AllowEviction, err = oneOf(v, "allow", "refuse")
		case "db":
			if u.Path != "" {
				return invalid("the URL names a database in its path and by db; leave out one of them")
			}
			err = o.database(v)
		case "name":
			o.ClientName = v
		} // the other parameters are about TLS and the login
		if err != nil {
			return invalid("parameter %s: %w", name, err)
		}
	}
	o.secrets = u.Secrets("key", "passwordfile")
	o.TLS, err = u.TLS(o.TLS)
	return err
}

// database takes the number of the database, unless that is empty.
func (o *Options) database(number string) error {
	if number == "" {
		return nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return errors.New("it is no database number")
	}
	o.DB = n
	return nil
}

// duration reads what flags of the command take as well: Go's notation, or a number
// of seconds.
func duration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1e9 {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration; write 90s, 1m30s, 250ms or a number of seconds", s)
	}
	return d, nil
}

// oneOf tells yes from no, and both from anything else.
func oneOf(v, yes, no string) (bool, error) {
	if v != yes && v != no {
		return false, fmt.Errorf("%q is neither %s nor %s", v, yes, no)
	}
	return v == yes, nil
}
