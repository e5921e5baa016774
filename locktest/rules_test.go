package locktest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each rule in package driver names cases of the suite that exist.
func TestEveryDriverRuleHasCases(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("../driver/driver.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, _, _ := strings.Cut(string(code), "package driver\n")
	doc = strings.Join(strings.Fields(strings.ReplaceAll(doc, "//", " ")), " ")
	rules := strings.Split(doc, " - ")[1:]
	if len(rules) < 20 {
		t.Errorf("found %d rules", len(rules))
	}
	for _, rule := range rules {
		named := regexp.MustCompile(`\(([A-Z]\w+(?:, [A-Z]\w+)*)\)`).FindStringSubmatch(rule)
		if named == nil {
			t.Errorf("the rule %.40q names no case", rule)
			continue
		}
		for name := range strings.SplitSeq(named[1], ", ") {
			if !slices.ContainsFunc(allCases, func(c testCase) bool { return c.name == name }) {
				t.Errorf("the rule %.40q names the case %s, which does not exist", rule, name)
			}
		}
	}
}

func TestCaseNamesAreUnique(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, c := range allCases {
		if seen[c.name] {
			t.Errorf("duplicate case %s", c.name)
		}
		seen[c.name] = true
	}
}
