package driverkit

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

var testGrammar = Grammar{
	Schemes: map[string]Scheme{
		"ab": {Example: "ab://h:1/path", Port: "1"}, "abs": {Example: "abs://h:1/path", Port: "1", TLS: true},
		"one": {Example: "one://h:1", Port: "1", Several: "write ab://"}, "unix": {Example: "unix:///run/s", Socket: true},
	},
	Usual:      []string{"ab", "one"},
	Parameters: []string{"prefix", "password"},
	Instead:    map[string]string{"pool": "there is none"},
}

func TestURLParametersAreReadOrRejected(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*URL{
		" ab://h\n":              {Hosts: []string{"h:1"}},
		"ab://h,i:2,[::1]/a%2Fb": {Hosts: []string{"h:1", "i:2", "[::1]:1"}, Path: "a/b", RawPath: "a%2Fb"},
		"ab://u:p%40%2C%20q@h?prefix=x%26y&password=": {
			Hosts: []string{"h:1"}, Username: "u", Password: "p@, q", Parameters: map[string]string{"prefix": "x&y", "password": ""},
		},
		"one://u@h":        {Hosts: []string{"h:1"}, Username: "u"},
		"unix://:p@/a%20b": {Path: "/a b", RawPath: "a%20b", Password: "p"},
	} {
		got, err := testGrammar.Parse(text)
		if err == nil {
			want.Scheme, _, _ = strings.Cut(strings.TrimSpace(text), "://")
			if want.Parameters == nil {
				want.Parameters = map[string]string{}
			}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, mend := range map[string]string{
		"":                            "begin with ab://, one://; an example: ab://h:1/path",
		"on://h":                      "the nearest is one://, an example: one://h:1",
		"ONE://h":                     "the nearest is one://, an example: one://h:1",
		"ab://h?ttl=h1dden":           "parameter ttl is not of the service but of each lease; give AcquireOptions.TTL",
		"ab://":                       "host 1 of 1 is missing",
		"ab://h,,i":                   "host 2 of 3 is missing",
		"ab://h:x":                    "host 1 of 1 is not host:port",
		"ab://h:99999":                "the port of host 1 of 1 is not from 1 to 65535",
		"ab://i,u:12345678":           "the port of host 2 of 2 is not from 1 to 65535; write host:port, or user:password@host:port",
		"ab://h i":                    "a blank",
		"ab://u:h1dden i@h":           "write a blank as %20",
		"ab://u:h1dden,i@h":           "a comma as %2C",
		"ab://u:h1dden@v:w@h":         "stand once",
		"ab://u:h1dden%zz@h":          "%25",
		"ab://u:h1dden/x@h":           "write / as %2F",
		"ab://u:h1dden?x@h":           "? as %3F",
		"ab://h/p#h1dden":             "# as %23",
		"one://h,i":                   "one:// takes one host; write ab://",
		"unix://h/s":                  "write unix:///run/s",
		"ab://h?prefix=a&prefix=b":    "prefix is given twice",
		"ab://h?pool=1":               "parameter pool is not known here; there is none",
		"ab://h?Prefx=1":              "parameter 1 of 1 after ? is not known; the nearest that is known is prefix",
		"ab://h?password=a&h1dden":    "parameter 2 of 2 after ? is not known; known are prefix, password, tls",
		"ab://h?password=a&h1dden%zz": "parameter 2 of 2 after ? cannot be read",
	} {
		if u, err := testGrammar.Parse(text); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), mend) || strings.Contains(err.Error(), "h1dden") {
			t.Errorf("%q: %+v, %v, want ErrInvalid with %q", text, u, err, mend)
		}
	}
}

func TestBackendIsOneSetOrNamedSets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Set{
		"ab://h":                            {{URLs: "ab://h"}},
		"ab://h?x=y=z\n ab://i":             {{URLs: "ab://h?x=y=z ab://i"}},
		"a=ab://h b=one://i\na=ab://j?x=y ": {{Name: "a", URLs: "ab://h ab://j?x=y"}, {Name: "b", URLs: "one://i"}},
		"sqlite:/a=b.db":                    {{URLs: "sqlite:/a=b.db"}},
		"a=sqlite:/a b=sqlite:///b":         {{Name: "a", URLs: "sqlite:/a"}, {Name: "b", URLs: "sqlite:///b"}},
	} {
		if got, err := ParseSets(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, mend := range map[string]string{
		" ":                      "has no URL",
		"h1dden:1":               "before the host, as in redis://localhost:6379",
		"ab://u:my h1dden@h":     "a blank in a password as %20",
		"ab://h a=ab://i":        "some URLs of the backend have a name",
		"a=ab://h ab://i":        "some URLs of the backend have a name",
		"=ab://h":                "some URLs of the backend have a name",
		"host=h password=h1dden": "part 1 of 2 of the backend is not a URL",
	} {
		if got, err := ParseSets(text); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), mend) || strings.Contains(err.Error(), "h1dden") {
			t.Errorf("%q: %+v, %v, want ErrInvalid with %q", text, got, err, mend)
		}
	}
}

// Possible passwords are hidden in valid and in invalid URLs.
func TestMaskHidesPasswords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                              "",
		"20s":                                           "20s",
		"sqlite:/l.db?synchronous=full":                 "sqlite:/l.db?synchronous=full",
		"mysql://u:s3cret@h/db?prefix=a_":               "mysql://u:***@h/db?prefix=a_",
		"redis://h:1/2?bare=true":                       "redis://h:1/2?bare=true",
		"redis://app@h?passwordfile=/f":                 "redis://app@h?passwordfile=/f",
		"postgres://h/d?password=s3cret&db=1":           "postgres://h/d?password=***&db=1",
		"redis://h?password=s3&cret&db=1":               "redis://h?password=***&***&db=1",
		"redis://:s3cret@h:1/2":                         "redis://:***@h:1/2",
		"unix://u:s3cret@/run/redis.sock?db=1":          "unix://u:***@/run/redis.sock?db=1",
		"unix://u@/run/redis.sock?password=s3cret&db=1": "unix://u@/run/redis.sock?password=***&db=1",
		"redlock://u:s3cret@a,b,c":                      "redlock://u:***@a,b,c",
		"redlock://u:s3cret@a,v:t3cret@b":               "redlock://***@b",
		"redis://u:s3,cret@h":                           "redis://***@h",
		"redis://u:s3@cret@h":                           "redis://***@h",
		"redis://u:s3/cret@h":                           "redis://***@h",
		"redis://u:s3?cret@h":                           "redis://***@h",
		"redis://u:s3?x=cret@h":                         "redis://***@h",
		"postgres://h/db?sslpassword=s3cret&PASSWORD=s": "postgres://h/db?sslpassword=***&PASSWORD=***",
		"host=h password=s3cret dbname=d":               "host=h password=*** dbname=d",
		"host=h password = 's3 cret' dbname=d":          "host=h password = *** dbname=d",
		`host=h PASSWORD='s3\' cret`:                    "host=h PASSWORD=***",
		"h:6379":                                        "h:6379",
		"u:s3cret@h:6379":                               "***@h:6379",
		"u:s3 cret@h:6379/0":                            "***@h:6379/0",
		"u:s3@cret@h redis://i":                         "***@h redis://i",
		"u:s3 cret@h redis://i":                         "***@h redis://i",
		"redis://h?pasword=s3cret":                      "redis://h?pasword=***",
		"redis://h?pass%77ord=s3cret&bare=true":         "redis://h?pass%77ord=***&bare=true",
		"PGPASSWORD=s3cret psql -h db":                  "PGPASSWORD=*** psql -h db",
		"month end @ 5":                                 "month end @ 5",
		"redis://u:s3cret@h redis+sentinel://v:t@s/m?sentinel_password=s redis://i": "redis://u:***@h redis+sentinel://v:***@s/m?sentinel_password=*** redis://i",
		"a=redis://u:s3cret@h\nb=redlock://v:t3cret@i,j c=etcd://l":                 "a=redis://u:***@h\nb=redlock://v:***@i,j c=etcd://l",
		"redis://u:s3 redis://cret@h":                                               "redis://***@h",
		"redis://u:s3 cret@h":                                                       "redis://***@h",
		"redis://u:s3 a=redis://cret@h":                                             "redis://***@h",
		"a=redis://h b=redis://:s3@i":                                               "a=redis://***@i",
	} {
		if got := Mask(text); got != want {
			t.Errorf("%s is masked as %s, want %s", text, got, want)
		}
	}
}

func FuzzMask(f *testing.F) {
	for _, text := range []string{
		"redis://u:%s@h", "redlock://u:%s@a", "redis://u:,%s@h", "redis://u:/%s@h", "redlock://a,u:%s@b", "redis://u:?a=%s@h",
		"redis://u:x redis://%s@h", "a=redis://u: b=redis://%s@h", "redis://u:x %s@h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		login, _, ok := strings.Cut(pattern, "%s")
		_, user, url := strings.Cut(login, "://")
		if !ok || !url || strings.Contains(login, "@") || !strings.Contains(user, ":") {
			return
		}
		if text := login + "s3cret" + "@host"; strings.Contains(Mask(text), "s3cret") {
			t.Errorf("%s is masked as %s", text, Mask(text))
		}
	})
}

// FuzzParse looks for panics, for hosts that cannot be dialed, and for passwords in errors.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"ab://u:h1dden@h:1,i/p?prefix=x", "ab://h1dden%zz@h", "ab://u:h1dden/@h", "ab://u:h1dden?@h", "unix://u:h1dden@/s", "ab://u:h1dden:h:1", "ab://h?h1dden=@",
		"one://h1dden,h", "ab://u:h1dden h", "a=ab://u:h1dden@h", "ab://h?password=x&h1dden",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := testGrammar.Parse(text)
		if err == nil {
			for _, host := range u.Hosts {
				if at := strings.LastIndex(host, ":"); at <= 0 || at == len(host)-1 {
					t.Errorf("host in %q is %q", text, host)
				}
			}
			return
		}
		if _, rest, _ := strings.Cut(text, "://"); !errors.Is(err, driver.ErrInvalid) || strings.Contains(rest, "h1dden") && strings.Contains(err.Error(), "h1dden") {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// Mask hides the values of both, but HasPassword reports only a password.
func TestUnknownParameterIsNotMasked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"redis://h:6379?ttl=3": false, "redis://h:6379?ttl=3&prefix=a": false, "redis://user@h?pasword_=x": true, "redis://h": false,
		"redis://:x@h?ttl=3": true, "redis://h?ttl=3&password=x": true, "redis://h?passwrd=x&ttl=3": true, "redis://h?passwordfile=p&ttl=3": false,
		"a=redis://h?ttl=3 b=redis://u:p@h": true, "redis://:a?b=c@h": true, "host=db password=x": true,
	} {
		if got := HasPassword(text); got != want {
			t.Errorf("HasPassword(%q) = %v", text, got)
		}
	}
}
