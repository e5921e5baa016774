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

// hidden are fields that no step reads: they are there for the promises.
var hidden = []string{"before", "ahead", "later"}

// trace has a line for each step of the trace in what TLC says: the action, and what it changed.
func trace(text string) []string {
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
			p.value(name, next)
		}
		if i > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s", m[1], changes(now, next)))
		}
		now = next
	}
	return lines
}

// changes says how the state after differs from before. Each path is a variable, what it has an entry for, and a field.
func changes(before, after map[string]string) string {
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
		case len(parts) == 3 && !slices.Contains(hidden, parts[2]):
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

// parser reads a value as TLC prints it.
type parser struct{ rest string }

// value puts what the value has at each path into the map. An element of a set is a path with an empty text.
func (p *parser) value(path string, into map[string]string) {
	p.space()
	switch {
	case p.skip("<<"):
		into[path] = "<<" + p.until(">>") + ">>"
	case p.skip("{"):
		if depth := strings.Count(path, "."); depth > 0 {
			into[path] = "{" + p.until("}") + "}"
			return
		}
		for !p.skip("}") {
			element := make(map[string]string)
			order := p.rest
			p.value("", element)
			into[path+"."+inOrder(order[:len(order)-len(p.rest)], element)] = ""
			p.skip(",")
			p.space()
		}
	case p.skip("["):
		for !p.skip("]") {
			name := p.word()
			p.skip("|->")
			p.value(path+"."+name, into)
			p.skip(",")
			p.space()
		}
	case p.skip("("):
		for !p.skip(")") {
			key := p.word()
			p.skip(":>")
			p.value(path+"."+key, into)
			p.skip("@@")
			p.space()
		}
	default:
		into[path] = strings.Trim(p.word(), `"`)
	}
}

// inOrder has the values of an element of a set in the order in which they are printed.
func inOrder(printed string, element map[string]string) string {
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

func (p *parser) space() { p.rest = strings.TrimLeft(p.rest, " \n\t") }

// skip goes past the text, if it is next.
func (p *parser) skip(text string) bool {
	p.space()
	rest, found := strings.CutPrefix(p.rest, text)
	p.rest = rest
	return found
}

// until is all up to the text, and goes past that. What lies between has no such bracket itself.
func (p *parser) until(text string) string {
	before, after, _ := strings.Cut(p.rest, text)
	p.rest = after
	return strings.Join(strings.Fields(before), " ")
}

// word is a name, a number or a string.
func (p *parser) word() string {
	p.space()
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
