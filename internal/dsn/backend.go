package dsn

import (
	"slices"
	"strings"
	"unicode"
)

// Set is one of the sets that a backend names.
type Set struct {
	Name string // empty: the backend is this set alone
	URLs string // with blanks between them
}

// Sets reads a backend. The sets are in the order in which their names come first.
func Sets(backend string) (all []Set, err error) {
	items := strings.Fields(backend)
	for i, item := range items {
		name, u, named := cutName(item)
		switch at := slices.IndexFunc(all, func(s Set) bool { return s.Name == name }); {
		case !strings.Contains(u, "://"):
			return nil, invalid("part %d of %d of the backend is no URL; write URL or NAME=URL, each as scheme://host:port, with blanks between them, "+
				"and a blank in a password as %%20", i+1, len(items))
		case named != (name != "") || len(all) > 0 && (name == "") != (all[0].Name == ""):
			return nil, invalid("some URLs of the backend have a name and others have none; write NAME= before each, " +
				"as in a=redis://h1:6379 a=redis://h2:6379 b=redis://h3:6379")
		case at < 0:
			all = append(all, Set{Name: name, URLs: u})
		default:
			all[at].URLs += " " + u
		}
	}
	if len(all) == 0 {
		return nil, invalid("the backend has no URL; an example: redis://localhost:6379")
	}
	return all, nil
}

// cutName cuts NAME=URL.
func cutName(item string) (name, u string, named bool) {
	scheme, _, _ := strings.Cut(item, "://")
	name, _, named = strings.Cut(scheme, "=")
	if !named {
		return "", item, false
	}
	return name, item[len(name)+1:], true
}

// Schemes are what the URLs of a backend begin with. They are no secrets.
func Schemes(backend string) (all []string) {
	for item := range strings.FieldsSeq(backend) {
		_, u, _ := cutName(item)
		if scheme, _, ok := strings.Cut(u, "://"); ok && !strings.ContainsFunc(scheme, func(r rune) bool { return r != '+' && !unicode.IsLower(r) }) {
			all = append(all, scheme)
		}
	}
	return slices.Compact(all)
}

// hidden stands for what is not shown.
const hidden = "***"

// Mask is text, which may be a backend, without what is a password, or may be a part of one.
func Mask(text string) string {
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
		if item, at := rest[:end], strings.LastIndex(rest, "@"); strings.Contains(item, "://") && !strings.Contains(item, "@") && at >= 0 {
			scheme, _, _ := strings.Cut(item, "://") // what looks like the next URL may be a part of a password
			b.WriteString(scheme + "://" + hidden + "@" + maskParameters(rest[at+1:]))
			break
		}
		b.WriteString(maskItem(rest[:end]))
		rest = rest[end:]
	}
	return b.String()
}

func maskItem(item string) string {
	scheme, rest, ok := strings.Cut(item, "://")
	if !ok {
		return maskParameters(item)
	}
	at := strings.LastIndex(rest, "@")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	user, _, secret := strings.Cut(rest[:max(at, 0)], ":")
	switch {
	case at > end, strings.ContainsAny(rest[:max(at, 0)], ",@"): // nobody can tell where the password ends
		rest = hidden + rest[at:]
	case secret:
		rest = user + ":" + hidden + rest[at:]
	}
	return scheme + "://" + maskParameters(rest)
}

// maskParameters hides the values of parameters with a password, and of the words of libpq.
func maskParameters(text string) string {
	var b strings.Builder
	after := false // a password: what follows an & may be a part of it
	for i, piece := range strings.SplitAfter(text, "&") {
		begin := 0
		if i == 0 {
			begin = strings.Index(piece, "?") + 1
		}
		name, value, ok := strings.Cut(piece[begin:], "=")
		if word := strings.ToLower(name); ok {
			after = strings.HasSuffix(word, "password")
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
			piece = piece[:begin] + name + hidden + end
		}
		b.WriteString(piece)
	}
	return b.String()
}
