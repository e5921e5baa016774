package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-go/holdfast"
)

// spokenElement is an element as a screen reader reads it.
type spokenElement struct{ role, name, text string }

// readTree returns the page as a screen reader reads it, from top to bottom.
func (v *visit) readTree() (all []spokenElement) {
	v.t.Helper()
	got, err := chromedp.Call(v.tab, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	v.failOn(err)
	nodes := make(map[accessibility.NodeID]*accessibility.Node)
	for _, n := range got.Nodes {
		nodes[n.NodeID] = n
	}
	word := func(x *accessibility.Value) string {
		if x == nil {
			return ""
		}
		return strings.Trim(string(x.Value), `"`)
	}
	var text func(n *accessibility.Node) string
	text = func(n *accessibility.Node) (t string) {
		if word(n.Role) == "StaticText" {
			return word(n.Name)
		}
		for _, id := range n.ChildIDs {
			if c := nodes[id]; c != nil {
				t += text(c)
			}
		}
		return t
	}
	var walk func(n *accessibility.Node)
	walk = func(n *accessibility.Node) {
		if !n.Ignored {
			all = append(all, spokenElement{word(n.Role), word(n.Name), text(n)})
		}
		for _, id := range n.ChildIDs {
			if c := nodes[id]; c != nil {
				walk(c)
			}
		}
	}
	walk(got.Nodes[0])
	return all
}

// namesOf returns the names of the elements with a role.
func namesOf(tree []spokenElement, role string) (names []string) {
	for _, s := range tree {
		if s.role == role {
			names = append(names, s.name)
		}
	}
	return names
}

// The test checks each view, wide and narrow, with a node that is down.
func TestEveryElementHasAccessibleName(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.servers[2].Kill()
	v.awaitTexts(`#doc-table`, "FAULT")
	v.awaitTexts(`#l-table`, "jobs/backup")
	controls := []string{"button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "table", "dialog", "region", "list"}
	check := func(view string, want map[string][]string) {
		tree := v.readTree()
		for _, s := range tree {
			if slices.Contains(controls, s.role) && strings.Trim(s.name, "–‹› ") == "" && (s.role != "list" || s.text == "") {
				t.Errorf("%s: a %s has no name: %+v", view, s.role, s)
			}
		}
		for role, names := range want {
			for _, name := range names {
				if !slices.ContainsFunc(namesOf(tree, role), func(got string) bool { return strings.HasPrefix(got, name) }) {
					t.Errorf("%s: no %s is named %q: %q", view, role, name, namesOf(tree, role))
				}
			}
		}
	}
	list := map[string][]string{
		"button":       {"Doctor 1 fault", "Page before", "Next page", "Examine again"},
		"searchbox":    {"Filter"},
		"combobox":     {"Order"},
		"table":        {"Locks", "Findings"},
		"columnheader": {"Lock", "State", "Holder", "Held for", "Lease left", "Waiting", "Verdict", "Node", "Check", "Finding"},
		"rowheader":    {"billing/month-end", "FAULT"},
		"link":         {"To the locks", "billing/month-end"},
		"region":       {"Locks", "Doctor"},
		"list":         {"Nodes"},
		"banner":       {""},
		"main":         {""},
		"search":       {""},
		"heading":      {"holdfast", "Locks", "Doctor"},
	}
	for _, width := range []int64{1280, 320} {
		v.doSteps(chromedp.EmulateViewport(width, 900))
		v.openPage("")
		v.doSteps(waitUntil(`document.getElementById("detail").hidden`))
		check(fmt.Sprintf("list, %d wide", width), list)
		v.checkRows(width, "Locks", 6)
		v.openPage("lock=billing/month-end")
		v.doSteps(chromedp.WaitVisible(`#d-votes tbody tr`))
		check(fmt.Sprintf("details, %d wide", width), map[string][]string{
			"region": {"billing/month-end"}, "button": {"Close the details", "Take the lock away"}, "table": {"What each node says"},
			"columnheader": {"Votes for", "Owner, token", "Left"}, "heading": {"billing/month-end", "Who waits", "Votes"},
		})
		v.checkRows(width, "What each node says", 5)
		v.doSteps(chromedp.Focus(`#d-force`), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`#f-reason`))
		check(fmt.Sprintf("dialogue, %d wide", width), map[string][]string{
			"dialog": {"Take the lock away?"}, "textbox": {"Why?", "Type the name of the lock.", "The token that the console printed"},
			"button": {"Cancel", "Take the lock away"},
		})
		v.pressKeys(kb.Escape)
	}
}

// checkRows checks that each row of a table has as many cells as columns: otherwise a screen reader reads
// cells under wrong headers.
func (v *visit) checkRows(width int64, table string, columns int) {
	v.t.Helper()
	count, in := -1, false
	for _, s := range append(v.readTree(), spokenElement{role: "row"}) {
		switch s.role {
		case "table":
			in = s.name == table
		case "row":
			if count >= 0 && count != columns {
				v.t.Errorf("%s, %d wide: a row has %d cells of %d", table, width, count, columns)
				return
			}
			if count = -1; in {
				count = 0
			}
		case "cell", "rowheader", "columnheader", "gridcell":
			if in {
				count++
			}
		}
	}
}

// The test counts the texts in the regions that a screen reader announces.
func TestScreenReaderAnnouncesEachChangeOnce(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.awaitTexts(`#l-table`, "jobs/backup")
	v.awaitTexts(`#headline`, "1 lock to look at") // the next renewal restores the other one
	v.awaitTexts(`#doctor`, "Found")
	evaluateJS[bool](v, `(() => {
		window.heard = [];
		let now = Object.fromEntries([...document.querySelectorAll("[role=status], [role=alert], [aria-live]")].map((e) => [e.id, e.innerText]));
		const listen = () => { for (const id in now) {
			const text = document.getElementById(id).innerText;
			if (text !== now[id] && text) heard.push(id + ": " + text.trim());
			now[id] = text;
		} };
		new MutationObserver(listen).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
		return true;
	})()`)
	heard := func(after time.Duration, want ...string) {
		t.Helper()
		if len(want) > 0 {
			v.doSteps(waitUntil(fmt.Sprintf(`heard.length >= %d`, len(want))))
		}
		time.Sleep(after) // refreshes that must announce nothing
		got := evaluateJS[[]string](v, `heard.splice(0)`)
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	heard(5 * time.Second) // renewals and running times
	v.pressKeys("/", "backup")
	heard(2*time.Second, "l-said: 1 lock for backup, trouble first, page 1 of 1")
	v.pressKeys(kb.Tab, "n")
	heard(2*time.Second, "l-said: 1 lock for backup, name, page 1 of 1")
	v.servers[2].Kill()
	heard(10*time.Second, "headline: DEGRADED: 1 of 3 nodes", "doc-text: Found 2 faults")
	evaluateJS[bool](v, `(examine(), true)`) // as every five minutes
	heard(2 * time.Second)
	v.failOn(v.console.Process.Kill())
	heard(10*time.Second, "headline: NOT LIVE: nothing heard from the console since")
	v.forgetErrors() // errors about the stopped console
	for _, region := range []string{"headline", "said", "l-said", "doc-text"} {
		if !evaluateJS[bool](v, fmt.Sprintf(`document.getElementById(%q).checkVisibility()`, region)) {
			t.Errorf("%s does not exist before its announcement", region)
		}
	}
}

// A word or a mark must differ wherever the color differs.
func TestStateIsShownWithoutColorToo(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.openPage("lock=cache/stock") // a lock that one node has lost
	v.awaitTexts(`#d-state`, "at risk")
	meaning := make(map[string]string) // by text: the level that it has shown
	look := func(when string) {
		for _, s := range evaluateJS[[][]string](v, `[...document.querySelectorAll("[data-level]")].filter((e) => e.checkVisibility()).map((e) => {
			const marks = [...e.querySelectorAll(":scope > .mark, :scope > .verdict")].map((m) => getComputedStyle(m, "::before").content).join("");
			const kind = e.id || e.closest("[id]").id, words = e.innerText.replace(/\d+(\.\d+)?/g, (n) => n === "0" ? "0" : "n").trim();
			return [e.dataset.level, kind + ": " + marks + " " + words.split("\n")[0]];
		})`) {
			level, words := s[0], s[1]
			if before, ok := meaning[words]; ok && before != level {
				t.Errorf("%s: %q has the colors of %s and of %s", when, words, before, level)
			}
			meaning[words] = level
		}
	}
	look("all up")
	v.servers[1].Kill()
	v.awaitTexts(`#headline`, "DEGRADED")
	v.awaitTexts(`#doc-table`, "FAULT", v.servers[1].Addr())
	look("one down")
	v.servers[2].Kill()
	v.awaitTexts(`#headline`, "NO MAJORITY")
	v.awaitTexts(`#l-table`, "unknown")
	look("two down")
	levels := make(map[string]bool)
	for _, level := range meaning {
		levels[level] = true
	}
	if len(levels) < 3 {
		t.Errorf("seen only %v", meaning)
	}
}

// Nodes, and then the console, fail and return while the page is open.
func TestPageKeepsItsDataThroughOutage(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.holdLocks(t.Context(), holdfast.Holder{Host: "web-1", PID: 1}, "nightly", "job"))
	v.openPage("lock=job")
	v.awaitTexts(`#d-facts`, "web-1 pid 1", "nightly")
	v.awaitTexts(`#d-state`, "held")
	v.servers[2].Kill()
	v.awaitTexts(`#headline`, "DEGRADED: 1 of 3 nodes")
	v.awaitTexts(`#nodes`, v.servers[2].Addr(), "DOWN")
	v.awaitTexts(`#d-votes`, "SILENT")
	v.awaitTexts(`#l-table`, "job", "held", "web-1 pid 1")
	v.servers[1].Kill()
	v.awaitTexts(`#headline`, "NO MAJORITY: 2 of 3 nodes")
	v.awaitTexts(`#l-table`, "unknown")
	v.awaitTexts(`#l-table`, "job", "web-1 pid 1")
	v.awaitTexts(`#d-facts`, "web-1 pid 1", "nightly")
	v.servers[0].Kill()
	v.awaitTexts(`#headline`, "NO MAJORITY: 3 of 3 nodes")
	v.awaitTexts(`#l-table`, "job", "unknown", "web-1 pid 1")
	for _, s := range v.servers {
		v.failOn(s.Restart(t.Context()))
	}
	v.awaitTexts(`#headline`, "All well")
	v.failOn(v.holdLocks(t.Context(), holdfast.Holder{Host: "web-2", PID: 2}, "", "job2"))
	v.awaitTexts(`#l-table`, "job2", "held", "web-2")

	v.failOn(v.console.Process.Kill())
	v.console.Wait()
	v.forgetErrors() // the browser logs that the console is gone
	v.awaitTexts(`#headline`, "NOT LIVE")
	v.awaitTexts(`#l-table`, "job2", "web-2 pid 2")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v.failOn(v.startConsole(ctx, v.backendURL()))
	v.awaitTexts(`#headline`, "All well")
	if evaluateJS[string](v, `document.body.dataset.live`) != "yes" {
		t.Error("the page does not look live")
	}
}
