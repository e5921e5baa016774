package driverkit

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Set is one set of servers of a backend.
type Set struct {
	Name string // empty: the backend has only this set
	URLs string // separated by blanks
}

// ParseSets parses a backend. The sets are in the order in which their names appear first.
func ParseSets(backend string) (all []Set, err error) {
	items := strings.Fields(backend)
	for i, item := range items {
		name, u, named := splitName(item)
		if len(items) == 1 && schemeOf(u) == "" {
			return nil, invalidError("the backend is not a URL; write what it is before the host, as in redis://localhost:6379")
		}
		switch at := slices.IndexFunc(all, func(s Set) bool { return s.Name == name }); {
		case schemeOf(u) == "":
			return nil, invalidError("part %d of %d of the backend is not a URL; write URL or NAME=URL, each as scheme://host:port, with blanks between them, "+
				"and a blank in a password as %%20", i+1, len(items))
		case named != (name != "") || len(all) > 0 && (name == "") != (all[0].Name == ""):
			return nil, invalidError("some URLs of the backend have a name and others have none; write NAME= before each, " +
				"as in a=redis://h1:6379 a=redis://h2:6379 b=redis://h3:6379")
		case at < 0:
			all = append(all, Set{Name: name, URLs: u})
		default:
			all[at].URLs += " " + u
		}
	}
	if len(all) == 0 {
		return nil, invalidError("the backend has no URL; an example: redis://localhost:6379")
	}
	return all, nil
}

// splitName splits NAME=URL.
func splitName(item string) (name, u string, named bool) {
	scheme, _, _ := strings.Cut(item, ":")
	name, _, named = strings.Cut(scheme, "=")
	if !named {
		return "", item, false
	}
	return name, item[len(name)+1:], true
}

// schemeOf returns the scheme of a URL, or "". The scheme of a file needs no slashes.
func schemeOf(u string) string {
	if scheme, _, ok := strings.Cut(u, "://"); ok {
		return scheme
	}
	if strings.HasPrefix(u, "sqlite:") {
		return "sqlite"
	}
	return ""
}

// Schemes returns the schemes of a backend's URLs, which are not secret.
func Schemes(backend string) (all []string) {
	for item := range strings.FieldsSeq(backend) {
		_, u, _ := splitName(item)
		if scheme := schemeOf(u); scheme != "" && !strings.ContainsFunc(scheme, func(r rune) bool { return r != '+' && !unicode.IsLower(r) }) {
			all = append(all, scheme)
		}
	}
	return slices.Compact(all)
}

// passwordMask is shown in place of a secret.
const passwordMask = "***"

// Mask returns text, which may be a backend, and hides each part that is a password or may belong to one.
func Mask(text string) string {
	if !strings.Contains(text, "://") {
		return maskWords(text)
	}
	var b strings.Builder
	for rest := text; rest != ""; {
		begin := strings.IndexFunc(rest, func(r rune) bool { return !unicode.IsSpace(r) })
		if begin < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:begin])
		rest = rest[begin:]
		end := strings.IndexFunc(rest, unicode.IsSpace)
		if end < 0 {
			end = len(rest)
		}
		item, at := rest[:end], strings.LastIndex(rest, "@")
		if scheme, _, ok := strings.Cut(item, "://"); !strings.Contains(item, "@") && at >= 0 && (ok || strings.Contains(item, ":")) {
			if ok { // the next URL may be part of a password
				b.WriteString(scheme + "://")
			}
			b.WriteString(passwordMask + "@" + maskParameters(rest[at+1:]))
			break
		}
		b.WriteString(maskItem(item))
		rest = rest[end:]
	}
	return b.String()
}

// harmlessParameter matches a parameter, which is no password unless its name suggests one.
var harmlessParameter = regexp.MustCompile(`[?&][A-Za-z0-9_-]+=[^&@\s]*`)

// HasPassword reports whether text may contain a password. Unlike Mask it ignores the values of unknown
// parameters, which Mask hides in case a name is misspelt.
func HasPassword(text string) bool {
	text = harmlessParameter.ReplaceAllStringFunc(text, func(parameter string) string {
		if secretWord.MatchString(parameter) && !slices.Contains(shownParameters, strings.ToLower(strings.Trim(strings.SplitN(parameter, "=", 2)[0], "?&"))) {
			return parameter
		}
		return ""
	})
	return Mask(text) != text
}

func maskItem(item string) string {
	scheme, rest, ok := strings.Cut(item, "://")
	if !ok {
		return maskWords(item)
	}
	at := strings.LastIndex(rest, "@")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	user, _, secret := strings.Cut(rest[:max(at, 0)], ":")
	switch {
	case at > end, strings.ContainsAny(rest[:max(at, 0)], ",@"): // the end of the password is ambiguous
		rest = passwordMask + rest[at:]
	case secret:
		rest = user + ":" + passwordMask + rest[at:]
	}
	return scheme + "://" + maskParameters(rest)
}

// secretWord matches the assignment of a password, in the syntax of libpq and of a shell.
var secretWord = regexp.MustCompile(`(?i)([a-z0-9_-]*(?:pas|pw|secret|token|auth)[a-z0-9_-]*\s*=\s*)('(?:\\.|[^'])*'?|"[^"]*"?|\S+)`)

// maskWords hides passwords in text without a URL: the text before an @, and assigned values.
func maskWords(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		if colon := strings.Index(text[:at], ":"); colon >= 0 {
			begin := strings.LastIndexFunc(text[:colon], unicode.IsSpace) + 1
			text = text[:begin] + passwordMask + text[at:]
		}
	}
	return maskAssigned(text)
}

func maskAssigned(text string) string {
	return secretWord.ReplaceAllStringFunc(text, func(word string) string {
		name, value, _ := strings.Cut(word, "=")
		if strings.HasSuffix(strings.ToLower(strings.TrimSpace(name)), "file") {
			return word
		}
		return name + "=" + value[:len(value)-len(strings.TrimLeftFunc(value, unicode.IsSpace))] + passwordMask
	})
}

// shownParameters lists the parameters whose values are not secret: for Redis, etcd, ZooKeeper, MySQL and
// SQLite, libpq and pgx, and settings of PostgreSQL that clients set. An unknown name may be a misspelt
// password.
var shownParameters = strings.Fields(`
	prefix bare format maxttl timeout quarantine eviction down db name username passwordfile sentinel_username tls ca cert key servername synchronous
	host hostaddr port user dbname passfile service servicefile sslmode sslcert sslkey sslrootcert sslcrl sslcrldir sslsni sslnegotiation sslcompression
	ssl_min_protocol_version ssl_max_protocol_version channel_binding require_auth connect_timeout client_encoding options application_name
	fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout target_session_attrs load_balance_hosts
	gssencmode krbsrvname krbspn gsslib replication requiressl holdfast_schema
	pool_max_conns pool_min_conns pool_min_idle_conns pool_max_conn_lifetime pool_max_conn_idle_time pool_health_check_period pool_max_conn_lifetime_jitter
	default_query_exec_mode statement_cache_capacity description_cache_capacity min_read_buffer_size
	search_path timezone datestyle statement_timeout lock_timeout idle_in_transaction_session_timeout idle_session_timeout transaction_timeout role
	synchronous_commit default_transaction_isolation default_transaction_read_only work_mem`)

// maskParameters hides the values of parameters that are, or may be, passwords.
func maskParameters(text string) string {
	var b strings.Builder
	after := false // after a password, which may continue after an &
	for i, piece := range strings.SplitAfter(text, "&") {
		begin := 0
		if i == 0 {
			if begin = strings.Index(piece, "?") + 1; begin == 0 {
				b.WriteString(maskAssigned(piece))
				continue
			}
		}
		name, value, ok := strings.Cut(piece[begin:], "=")
		if ok {
			after = !slices.Contains(shownParameters, strings.ToLower(name))
		}
		if after && (ok || i > 0) {
			if !ok {
				value, name = name, ""
			} else {
				name += "="
			}
			end := ""
			if strings.HasSuffix(value, "&") {
				end = "&"
			}
			piece = piece[:begin] + name + passwordMask + end
		}
		b.WriteString(piece)
	}
	return b.String()
}
