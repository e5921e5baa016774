package redisproc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func (o *Options) check() error {
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("port %d is out of range", o.Port)
	}
	if !slices.Contains([]string{"", "everysec", "always", "no"}, o.AppendOnly) {
		return fmt.Errorf("append-only policy %q is none of everysec, always and no", o.AppendOnly)
	}
	for _, user := range o.ACL {
		if strings.ContainsAny(user, "\r\n") {
			return fmt.Errorf("an ACL entry is one line, not %q", user)
		}
	}
	return nil
}

// configText returns the text of the server's configuration file. Unlike arguments, a file hides the password
// from ps.
func (o *Options) configText(port int, dataDir string) string {
	var text strings.Builder
	set := func(name string, values ...string) {
		text.WriteString(name)
		for _, value := range values {
			text.WriteString(" " + quoteValue(value))
		}
		text.WriteString("\n")
	}
	set("bind", "127.0.0.1")
	set("daemonize", "no")
	set("dir", dataDir)
	set("save", "")                      // a snapshot at SIGTERM would keep, in an orderly stop, what a crash loses
	set("repl-diskless-sync-delay", "0") // by default a replica waits five seconds for others to join it
	o.setListeners(port, set)
	if o.Password != "" {
		set("requirepass", o.Password)
		set("masterauth", o.Password)
	}
	for _, user := range o.ACL {
		text.WriteString("user " + user + "\n")
	}
	if o.AppendOnly != "" {
		set("appendonly", "yes")
		set("appendfsync", o.AppendOnly)
	}
	return text.String()
}

func (o *Options) setListeners(port int, set func(name string, values ...string)) {
	if o.TLS == nil {
		set("port", strconv.Itoa(port))
		return
	}
	set("port", "0")
	set("tls-port", strconv.Itoa(port))
	set("tls-ca-cert-file", o.TLS.Cert)
	set("tls-cert-file", o.TLS.Cert)
	set("tls-key-file", o.TLS.Key)
	set("tls-replication", "yes")
	set("tls-auth-clients", map[bool]string{true: "yes", false: "no"}[o.AuthClients])
}

// quoteValue quotes a value for the configuration file, which supports \xHH but not Go's \u.
func quoteValue(value string) string {
	var quoted strings.Builder
	quoted.WriteByte('"')
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			fmt.Fprintf(&quoted, `\x%02x`, c)
		} else {
			quoted.WriteByte(c)
		}
	}
	quoted.WriteByte('"')
	return quoted.String()
}
