package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	states   = regexp.MustCompile(`(?m)^State \d+: <(\w+) .*>\n((?:.+\n)*)`)
	variable = regexp.MustCompile(`(?m)^/\\ (\w+) = `)
)

// historyFields are fields that no step reads; they exist for the promises.
var historyFields = []string{"before", "ahead", "later"}

// parseTrace returns a line for each step of the trace in TLC's output: the action and its changes.
func parseTrace(text string) []string {
	var lines []string
	now := make(map[string]string)
	for i, m := range states.FindAllStringSubmatch(text, -1) {
		next := maps.Clone(now)
		at := variable.FindAllStringSubmatchIndex(m[2], -1)
		for j, v := range at {
			end := len(m[2])
			if j+1 < len(at) {
				end = at[j+1][0]
			}
			name := m[2][v[2]:v[3]]
			maps.DeleteFunc(next, func(path, _ string) bool { return strings.HasPrefix(path, name+".") })
			p := parser{rest: m[2][v[1]:end]}
			p.readValue(name, next)
		}
		if i > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s", m[1], describeChanges(now, next)))
		}
		now = next
	}
	return lines
}

// describeChanges describes the differences between two states. A path is a variable, the key of an entry, and
// a field.
func describeChanges(before, after map[string]string) string {
	groups := make(map[string][]string)
	for path, was := range before {
		name, _, _ := strings.Cut(path, ".")
		if _, still := after[path]; !still && was == "" {
			groups[name] = append(groups[name], "no "+strings.TrimPrefix(path, name+"."))
		}
	}
	for path, is := range after {
		was, known := before[path]
		if known && was == is {
			continue
		}
		parts := strings.SplitN(path, ".", 3)
		switch {
		case len(parts) == 3 && !slices.Contains(historyFields, parts[2]):
			groups[parts[1]] = append(groups[parts[1]], parts[2]+" "+is)
		case len(parts) == 2:
			groups[parts[0]] = append(groups[parts[0]], strings.TrimSpace(parts[1]+" "+is))
		}
	}
	var out []string
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		slices.Sort(groups[group])
		out = append(out, group+": "+strings.Join(groups[group], ", "))
	}
	return strings.Join(out, "; ")
}

// parser parses a value in TLC's notation.
type parser struct{ rest string }

// readValue stores the value at each path in the map. An element of a set is a path with an empty text.
func (p *parser) readValue(path string, into map[string]string) {
	p.skipSpace()
	switch {
	case p.skip("<<"):
		into[path] = "<<" + p.readUntil(">>") + ">>"
	case p.skip("{"):
		if depth := strings.Count(path, "."); depth > 0 {
			into[path] = "{" + p.readUntil("}") + "}"
			return
		}
		for !p.skip("}") {
			element := make(map[string]string)
			order := p.rest
			p.readValue("", element)
			into[path+"."+printedOrder(order[:len(order)-len(p.rest)], element)] = ""
			p.skip(",")
			p.skipSpace()
		}
	case p.skip("["):
		for !p.skip("]") {
			name := p.readWord()
			p.skip("|->")
			p.readValue(path+"."+name, into)
			p.skip(",")
			p.skipSpace()
		}
	case p.skip("("):
		for !p.skip(")") {
			key := p.readWord()
			p.skip(":>")
			p.readValue(path+"."+key, into)
			p.skip("@@")
			p.skipSpace()
		}
	default:
		into[path] = strings.Trim(p.readWord(), `"`)
	}
}

// printedOrder returns the values of a set's element in the order in which TLC prints them.
func printedOrder(printed string, element map[string]string) string {
	if text, plain := element[""]; plain {
		return text
	}
	paths := slices.SortedFunc(maps.Keys(element), func(a, b string) int {
		return strings.Index(printed, a[1:]+" |->") - strings.Index(printed, b[1:]+" |->")
	})
	var words []string
	for _, path := range paths {
		words = append(words, element[path])
	}
	return strings.Join(words, " ")
}

func (p *parser) skipSpace() { p.rest = strings.TrimLeft(p.rest, " \n\t") }

// skip skips the text if it is next, and reports whether it was.
func (p *parser) skip(text string) bool {
	p.skipSpace()
	rest, found := strings.CutPrefix(p.rest, text)
	p.rest = rest
	return found
}

// readUntil returns the input up to the text, and skips both. The input in between must not contain the text's
// bracket.
func (p *parser) readUntil(text string) string {
	before, after, _ := strings.Cut(p.rest, text)
	p.rest = after
	return strings.Join(strings.Fields(before), " ")
}

// readWord reads a name, a number or a string.
func (p *parser) readWord() string {
	p.skipSpace()
	end := 1
	if strings.HasPrefix(p.rest, `"`) {
		end = strings.Index(p.rest[1:], `"`) + 2
	} else if i := strings.IndexAny(p.rest, " ,])}\n>"); i > 0 {
		end = i
	}
	end = min(end, len(p.rest))
	word := p.rest[:end]
	p.rest = p.rest[end:]
	return word
}
