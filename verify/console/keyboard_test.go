package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-go/holdfast"
)

// focus returns the focused element: its id, or its text.
const focus = `((e) => e === document.body ? "nothing" : e.id || e.textContent.trim())(document.activeElement)`

// pressKeys presses keys in order.
func (v *visit) pressKeys(keys ...string) {
	v.t.Helper()
	for _, key := range strings.Join(keys, "") {
		events := kb.Encode(key)
		if len(events) == 3 { // a page that handles the key must get no character
			events[0].Text = events[1].Text
			events = slices.Delete(events, 1, 2)
		}
		for _, e := range events {
			_, err := chromedp.Call(v.tab, input.DispatchKeyEvent, *e)
			v.failOn(err)
		}
	}
}

// awaitFocus waits until an element has a visible focus.
func (v *visit) awaitFocus(want string) {
	v.t.Helper()
	v.doSteps(waitUntil(fmt.Sprintf(`%s === %q`, focus, want)))
	v.checkFocusVisible()
}

// checkFocusVisible fails unless the focus is visible.
func (v *visit) checkFocusVisible() {
	v.t.Helper()
	if !evaluateJS[bool](v, `(() => {
		const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
		return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.bottom > 0 && box.top < innerHeight;
	})()`) {
		v.t.Errorf("the focus on %s is not visible", evaluateJS[string](v, focus))
	}
}

// tabTo presses Tab until an element has the focus, a bounded number of times.
func (v *visit) tabTo(want string) {
	v.t.Helper()
	for range 60 {
		if v.pressKeys(kb.Tab); evaluateJS[string](v, focus) == want {
			v.checkFocusVisible()
			return
		}
	}
	v.t.Fatalf("Tab does not reach %s", want)
}

// tabStops returns the elements that Tab visits, from the top of the page or the first field of a dialogue,
// until it begins again.
func (v *visit) tabStops() (names []string) {
	v.t.Helper()
	if evaluateJS[bool](v, `!document.querySelector("dialog[open]")`) {
		evaluateJS[bool](v, `(document.activeElement.blur(), getSelection().collapse(document.body, 0), true)`)
		v.pressKeys(kb.Tab)
	}
	for range 100 {
		at := evaluateJS[string](v, focus)
		if at == "nothing" || slices.Contains(names, at) {
			return names
		}
		v.checkFocusVisible()
		names = append(names, at)
		v.pressKeys(kb.Tab)
	}
	v.t.Fatalf("Tab does not return to the start: %v", names)
	return nil
}

// Tab stops at every usable element, in the order of the page.
func TestKeyboardReachesEveryControl(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.servers[2].Kill() // a finding for the doctor
	v.awaitTexts(`#l-table`, "jobs/backup", "legacy/export")
	v.awaitTexts(`#doc-table`, "FAULT")
	usable := func(in string) []string {
		return evaluateJS[[]string](v, fmt.Sprintf(`[...document.querySelectorAll(%q)]
			.filter((e) => e.matches("a[href], button:enabled, input, select, summary") && (e.matches(".skip") || e.checkVisibility()))
			.map((e) => e.id || e.textContent.trim())`, in))
	}
	for _, view := range []struct {
		name, in string
		open     func()
	}{
		{"list", "body *", func() {}},
		{"details", "body *", func() {
			v.openPage("lock=billing/month-end")
			v.doSteps(chromedp.WaitVisible(`#d-force`))
		}},
		{"dialogue", "dialog *", func() {
			v.tabTo("d-force")
			v.pressKeys(kb.Enter)
			v.doSteps(chromedp.WaitVisible(`#f-reason`))
		}},
	} {
		view.open()
		if got, want := v.tabStops(), usable(view.in); !slices.Equal(got, want) || len(want) < 5 {
			t.Errorf("%s: Tab reaches %q, want %q", view.name, got, want)
		}
	}
}

func TestKeyboardOpensAndClosesEachView(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.awaitTexts(`#l-table`, "jobs/backup")
	v.pressKeys(kb.Tab)
	v.doSteps(waitUntil(`document.activeElement.className === "skip"`))
	v.pressKeys(kb.Enter)
	v.awaitFocus("locks")

	v.pressKeys("/", "backup")
	v.doSteps(waitUntil(`document.querySelectorAll("#l-table tbody tr").length === 1`))
	v.tabTo("jobs/backup")
	v.pressKeys(kb.Enter)
	v.awaitFocus("detail")
	v.awaitTexts(`#d-name`, "jobs/backup")
	v.pressKeys(kb.Escape)
	v.awaitFocus("jobs/backup")
	v.doSteps(waitUntil(`document.getElementById("detail").hidden`))

	v.pressKeys(kb.Enter)
	v.awaitFocus("detail")
	v.tabTo("d-force")
	for _, leave := range []string{kb.Escape, kb.Enter} { // by the key, and by the button
		v.pressKeys(kb.Enter)
		v.awaitFocus("f-reason")
		if leave == kb.Enter {
			v.tabTo("f-cancel")
		}
		v.pressKeys(leave)
		v.doSteps(waitUntil(`!document.getElementById("force").open`))
		v.awaitFocus("d-force")
	}
	v.pressKeys(kb.Escape)
	v.awaitFocus("jobs/backup")

	v.pressKeys("/", kb.Escape) // clears the filter
	v.doSteps(waitUntil(`document.querySelectorAll("#l-table tbody tr").length > 10`))
	v.awaitFocus("filter")
	v.pressKeys(kb.Tab, "l") // order by the end of leases
	v.doSteps(waitUntil(`location.hash.includes("sort=left")`))
	v.awaitFocus("sort")

	v.tabTo("c-doctor")
	v.pressKeys(kb.Enter)
	v.awaitFocus("doctor")
	v.tabTo("doc-run")
	v.doSteps(waitUntil(`document.getElementById("doc-text").textContent !== "Examining …"`))
	v.pressKeys(kb.Enter)
	v.awaitTexts(`#doctor`, "Found")
	v.awaitFocus("doc-run")
	v.pressKeys(kb.Tab, " ")
	v.doSteps(waitUntil(`document.querySelector("#doc-rest").open`))
}

// The test removes the focused element: Tab must not begin again at the top of the page.
func TestFocusStaysOnExistingElement(t *testing.T) {
	v := openConsole(t, 1)
	v.failOn(v.runOnFirstNode("EVAL", "for i = 1, 60 do redis.call('SET', string.format('lock:n%02d', i), 'first', 'PX', 600000) end", "0"))
	v.openPage("sort=name")
	v.awaitTexts(`#p-text`, "1 of 2")
	v.awaitTexts(`#l-table`, "n01")
	v.tabTo("p-next")
	v.pressKeys(kb.Enter)
	v.awaitTexts(`#p-text`, "2 of 2")
	v.pressKeys(kb.Enter) // this is the last page
	v.awaitFocus("p-next")
	v.doSteps(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	v.awaitFocus("p-back")
	v.pressKeys(kb.Enter)
	v.awaitTexts(`#p-text`, "1 of 2")
	v.awaitFocus("p-back")

	v.tabTo("n02")
	v.failOn(v.runOnFirstNode("DEL", "lock:n02"))
	v.awaitFocus("n03") // after its row has gone
	v.pressKeys(kb.Enter)
	v.awaitFocus("detail")
	v.failOn(v.runOnFirstNode("DEL", "lock:n03"))
	v.doSteps(waitUntil(`![...document.querySelectorAll("#l-table a")].some((a) => a.textContent === "n03")`))
	v.pressKeys(kb.Escape)
	v.awaitFocus("locks") // after its row has gone
}

func TestKeyboardCanForceRelease(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.holdLocks(t.Context(), holdfast.Holder{Host: "web-1", PID: 1}, "", "job"))
	v.awaitTexts(`#l-table`, "job")
	v.tabTo("job")
	v.pressKeys(kb.Enter)
	v.awaitFocus("detail")
	v.tabTo("d-force")
	v.pressKeys(kb.Enter)
	v.awaitFocus("f-reason")
	v.awaitTexts(`#f-facts`, "job", "web-1 pid 1")

	v.pressKeys("its host is gone", kb.Tab, "jab", kb.Tab, "wrong", kb.Enter)
	v.awaitTexts(`#f-error`, "not the name of the lock")
	v.awaitFocus("f-name") // the field to correct
	v.pressKeys("job")     // replaces the text of the field
	v.doSteps(waitUntil(`document.getElementById("f-name").value === "job"`))
	v.tabTo("f-go")
	began := time.Now()
	v.pressKeys(kb.Enter)
	v.awaitTexts(`#f-error`, "not the token")
	if took := time.Since(began); took < time.Second {
		t.Errorf("the answer to a wrong token took %s", took)
	}
	if got := v.said.String(); !strings.Contains(got, "wrong token") || !strings.Contains(got, "127.0.0.1") {
		t.Errorf("the console's message for a wrong token: %q", got)
	}
	v.awaitFocus("f-token")
	v.awaitTexts(`#d-state`, "held")
	v.pressKeys(v.token, kb.Enter)
	v.awaitTexts(`#said`, "job was taken from web-1 pid 1")
	v.awaitTexts(`#d-state`, "free")
	v.doSteps(waitUntil(`!document.getElementById("force").open`))
	v.awaitFocus("detail") // the button that opened the dialogue has gone
	st, err := v.clients[0].Inspect(t.Context(), "job")
	v.failOn(err)
	if st.Held {
		t.Errorf("%v holds the lock", st.Holder)
	}
	v.forgetErrors() // drops the logged answer to the wrong token
}
