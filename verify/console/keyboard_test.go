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

// focus is the element that has the focus: its id, or its words.
const focus = `((e) => e === document.body ? "nothing" : e.id || e.textContent.trim())(document.activeElement)`

// press presses keys, one after the other.
func (v *visit) press(keys ...string) {
	v.t.Helper()
	for _, key := range strings.Join(keys, "") {
		events := kb.Encode(key)
		if len(events) == 3 { // the character comes with the key, so that a page that takes the key gets no character
			events[0].Text = events[1].Text
			events = slices.Delete(events, 1, 2)
		}
		for _, e := range events {
			_, err := chromedp.Call(v.tab, input.DispatchKeyEvent, *e)
			v.must(err)
		}
	}
}

// comes waits until the focus is on an element, which must be seen to have it.
func (v *visit) comes(want string) {
	v.t.Helper()
	v.do(until(fmt.Sprintf(`%s === %q`, focus, want)))
	v.visible()
}

// visible wants that one sees where the focus is.
func (v *visit) visible() {
	v.t.Helper()
	if !evaluate[bool](v, `(() => {
		const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
		return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.bottom > 0 && box.top < innerHeight;
	})()`) {
		v.t.Errorf("one does not see that %s has the focus", evaluate[string](v, focus))
	}
}

// tabTo goes on from element to element until one has the focus, at most so many.
func (v *visit) tabTo(want string) {
	v.t.Helper()
	for range 60 {
		if v.press(kb.Tab); evaluate[string](v, focus) == want {
			v.visible()
			return
		}
	}
	v.t.Fatalf("Tab does not come to %s", want)
}

// stops are the elements that Tab comes to, from the top of the page or the first field of a dialogue, until it begins again.
func (v *visit) stops() (names []string) {
	v.t.Helper()
	if evaluate[bool](v, `!document.querySelector("dialog[open]")`) {
		evaluate[bool](v, `(document.activeElement.blur(), getSelection().collapse(document.body, 0), true)`)
		v.press(kb.Tab)
	}
	for range 100 {
		at := evaluate[string](v, focus)
		if at == "nothing" || slices.Contains(names, at) {
			return names
		}
		v.visible()
		names = append(names, at)
		v.press(kb.Tab)
	}
	v.t.Fatalf("Tab does not come round: %v", names)
	return nil
}

// TestTheKeyboardReachesAllThatCanBeUsed compares the stops of Tab with what can be used, in the order of the page.
func TestTheKeyboardReachesAllThatCanBeUsed(t *testing.T) {
	v := open(t, 3)
	v.must(v.play(t.Context()))
	v.servers[2].Kill() // for the doctor to find
	v.shows(`#l-table`, "jobs/backup", "legacy/export")
	v.shows(`#doc-table`, "FAULT")
	usable := func(in string) []string {
		return evaluate[[]string](v, fmt.Sprintf(`[...document.querySelectorAll(%q)]
			.filter((e) => e.matches("a[href], button:enabled, input, select, summary") && (e.matches(".skip") || e.checkVisibility()))
			.map((e) => e.id || e.textContent.trim())`, in))
	}
	for _, view := range []struct {
		name, in string
		open     func()
	}{
		{"list", "body *", func() {}},
		{"details", "body *", func() {
			v.look("lock=billing/month-end")
			v.do(chromedp.WaitVisible(`#d-force`))
		}},
		{"dialogue", "dialog *", func() {
			v.tabTo("d-force")
			v.press(kb.Enter)
			v.do(chromedp.WaitVisible(`#f-reason`))
		}},
	} {
		view.open()
		if got, want := v.stops(), usable(view.in); !slices.Equal(got, want) || len(want) < 5 {
			t.Errorf("%s: Tab comes to %q, want %q", view.name, got, want)
		}
	}
}

func TestTheKeyboardOpensAndClosesEachView(t *testing.T) {
	v := open(t, 3)
	v.must(v.play(t.Context()))
	v.shows(`#l-table`, "jobs/backup")
	v.press(kb.Tab)
	v.do(until(`document.activeElement.className === "skip"`))
	v.press(kb.Enter)
	v.comes("locks")

	v.press("/", "backup")
	v.do(until(`document.querySelectorAll("#l-table tbody tr").length === 1`))
	v.tabTo("jobs/backup")
	v.press(kb.Enter)
	v.comes("detail")
	v.shows(`#d-name`, "jobs/backup")
	v.press(kb.Escape)
	v.comes("jobs/backup")
	v.do(until(`document.getElementById("detail").hidden`))

	v.press(kb.Enter)
	v.comes("detail")
	v.tabTo("d-force")
	for _, leave := range []string{kb.Escape, kb.Enter} { // by the key, and by the button
		v.press(kb.Enter)
		v.comes("f-reason")
		if leave == kb.Enter {
			v.tabTo("f-cancel")
		}
		v.press(leave)
		v.do(until(`!document.getElementById("force").open`))
		v.comes("d-force")
	}
	v.press(kb.Escape)
	v.comes("jobs/backup")

	v.press("/", kb.Escape) // empties it
	v.do(until(`document.querySelectorAll("#l-table tbody tr").length > 10`))
	v.comes("filter")
	v.press(kb.Tab, "l") // the order in which leases end
	v.do(until(`location.hash.includes("sort=left")`))
	v.comes("sort")

	v.tabTo("c-doctor")
	v.press(kb.Enter)
	v.comes("doctor")
	v.tabTo("doc-run")
	v.do(until(`document.getElementById("doc-text").textContent !== "Examining …"`))
	v.press(kb.Enter)
	v.shows(`#doctor`, "Found")
	v.comes("doc-run")
	v.press(kb.Tab, " ")
	v.do(until(`document.querySelector("#doc-rest").open`))
}

// TestTheFocusStaysWhereSomethingIs takes away what has the focus: Tab must not begin again at the top of the page.
func TestTheFocusStaysWhereSomethingIs(t *testing.T) {
	v := open(t, 1)
	v.must(v.do0("EVAL", "for i = 1, 60 do redis.call('SET', string.format('lock:n%02d', i), 'first', 'PX', 600000) end", "0"))
	v.look("sort=name")
	v.shows(`#p-text`, "1 of 2")
	v.shows(`#l-table`, "n01")
	v.tabTo("p-next")
	v.press(kb.Enter)
	v.shows(`#p-text`, "2 of 2")
	v.press(kb.Enter) // there is no page after this one
	v.comes("p-next")
	v.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	v.comes("p-back")
	v.press(kb.Enter)
	v.shows(`#p-text`, "1 of 2")
	v.comes("p-back")

	v.tabTo("n02")
	v.must(v.do0("DEL", "lock:n02"))
	v.comes("n03") // when the row has gone
	v.press(kb.Enter)
	v.comes("detail")
	v.must(v.do0("DEL", "lock:n03"))
	v.do(until(`![...document.querySelectorAll("#l-table a")].some((a) => a.textContent === "n03")`))
	v.press(kb.Escape)
	v.comes("locks") // its row has gone
}

func TestTheKeyboardTakesALockAway(t *testing.T) {
	v := open(t, 3)
	v.must(v.hold(t.Context(), holdfast.Holder{Host: "web-1", PID: 1}, "", "job"))
	v.shows(`#l-table`, "job")
	v.tabTo("job")
	v.press(kb.Enter)
	v.comes("detail")
	v.tabTo("d-force")
	v.press(kb.Enter)
	v.comes("f-reason")
	v.shows(`#f-facts`, "job", "web-1 pid 1")

	v.press("its host is gone", kb.Tab, "jab", kb.Tab, "wrong", kb.Enter)
	v.shows(`#f-error`, "not the name of the lock")
	v.comes("f-name") // what is to be mended
	v.press("job")    // over what stands there
	v.do(until(`document.getElementById("f-name").value === "job"`))
	v.tabTo("f-go")
	began := time.Now()
	v.press(kb.Enter)
	v.shows(`#f-error`, "not the token")
	if took := time.Since(began); took < time.Second {
		t.Errorf("a wrong token is answered after %s", took)
	}
	if got := v.said.String(); !strings.Contains(got, "wrong token") || !strings.Contains(got, "127.0.0.1") {
		t.Errorf("the console says of a wrong token: %q", got)
	}
	v.comes("f-token")
	v.shows(`#d-state`, "held")
	v.press(v.token, kb.Enter)
	v.shows(`#said`, "job was taken from web-1 pid 1")
	v.shows(`#d-state`, "free")
	v.do(until(`!document.getElementById("force").open`))
	v.comes("detail") // the button that opened the dialogue has gone
	st, err := v.clients[0].Inspect(t.Context(), "job")
	v.must(err)
	if st.Held {
		t.Errorf("%v holds the lock", st.Holder)
	}
	v.forget() // it logs the answer to the wrong token
}
