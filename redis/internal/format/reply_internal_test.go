package format

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/resp"
)

func TestOnlyLastingErrorsAreFatal(t *testing.T) {
	t.Parallel()
	const hidden = "ERR Error running script (call to f_0): @user_script:2: @user_script: 2: -"
	for text, want := range map[string]struct{ fatal, ends bool }{
		"ERR unknown command 'EVALSHA', with args":                                {true, false},
		"ERR ACL failure in script: No permissions to access a key":               {true, false},
		"ERR Error running script (call to f_0): @user_script:2: attempt to call": {true, false},
		"ERR The user executing the script can't run this command or subcommand":  {true, false},
		hidden + "NOPERM this user has no permissions":                            {true, false},
		"NOPERM this user has no permissions to run the 'evalsha' command":        {true, false},
		"NOAUTH Authentication required.":                                         {true, false},
		"WRONGPASS invalid username-password pair or user is disabled.":           {true, false},
		"DENIED Redis is running in protected mode":                               {true, false},
		"WRONGTYPE Operation against a key holding the wrong kind of value":       {true, false},
		"LOADING Redis is loading the dataset in memory":                          {},
		"BUSY Redis is busy running a script.":                                    {},
		"TRYAGAIN Multiple keys request during rehashing of slot":                 {},
		"NOSCRIPT No matching script.":                                            {},
		"CLOCK the node's clock is 3600 s ahead":                                  {},
		"CLUSTERDOWN The cluster is down":                                         {},
		"OOM command not allowed when used memory > 'maxmemory'.":                 {},
		hidden + "OOM command not allowed when used memory > 'maxmemory'.":        {},
		"MISCONF Redis is configured to save RDB snapshots":                       {},
		"NOREPLICAS Not enough good replicas to write.":                           {},
		"READONLY You can't write against a read only replica.":                   {false, true},
		hidden + "READONLY You can't write against a read only replica.":          {false, true},
		"MASTERDOWN Link with MASTER is down":                                     {false, true},
		"UNADMITTED":                                                              {false, true},
	} {
		v := resp.Value{Kind: '-', Text: []byte(text)}
		if f, o := isLasting(ErrorCode(v.Text)), SessionError(v); f != want.fatal || (o != nil) != want.ends {
			t.Errorf("%q: fatal %v, ends %v, want %+v", text, f, o, want)
		}
	}
}
