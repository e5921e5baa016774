package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/rig/leaktest"
)

// patience bounds each wait for an expected event, on a busy machine.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(leaktest.Run(cleaning{m})) }

// cleaning removes the program once the tests are over.
type cleaning struct{ *testing.M }

// Run runs the tests.
func (m cleaning) Run() int {
	defer func() {
		if dir, _ := buildProgram(); dir != "" {
			os.RemoveAll(dir)
		}
	}()
	return m.M.Run()
}

// visit is the page of a console in a browser.
type visit struct {
	*stage
	t   *testing.T
	tab context.Context

	mu     sync.Mutex // guards faults
	faults []string   // faults that the browser has found in the page
}

// openConsole opens the console for a number of nodes. Without a browser it skips the test, or fails it if
// HOLDFAST_SERVERS_REQUIRED is set, as in continuous integration.
func openConsole(t *testing.T, nodes int) *visit {
	t.Helper()
	if testing.Short() {
		t.Skip("-short starts no browser")
	}
	t.Parallel()
	if _, err := findBrowser(); err != nil {
		if os.Getenv("HOLDFAST_SERVERS_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s, err := newStage(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	if err := s.startConsole(t.Context(), s.backendURL()); err != nil {
		t.Fatal(err)
	}
	tab, end, err := newTab(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v := &visit{stage: s, t: t, tab: tab}
	t.Cleanup(func() {
		end()
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, text := range v.faults {
			t.Errorf("the browser reports: %s", text)
		}
	})
	listening := make(chan struct{})
	messages := chromedp.Console(tab)
	go func() {
		close(listening)
		for m, err := range messages {
			if err != nil {
				return
			}
			v.mu.Lock()
			v.faults = append(v.faults, fmt.Sprintf("%+v", m))
			v.mu.Unlock()
		}
	}()
	<-listening
	v.doSteps(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(s.url))
	return v
}

// doSteps runs the steps in order.
func (v *visit) doSteps(steps ...step) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.tab, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		text, _ := chromedp.Run(v.tab, chromedp.Evaluate[string](`document.body.innerText`))
		v.t.Fatalf("%v\npage:\n%s", err, text)
	}
}

// awaitTexts waits until an element has all of the texts.
func (v *visit) awaitTexts(selector string, texts ...string) {
	v.t.Helper()
	for _, text := range texts {
		v.doSteps(waitUntil(fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? "").includes(%q)`, selector, text)))
	}
}

func evaluateJS[T any](v *visit, expression string) T {
	v.t.Helper()
	got, err := chromedp.Run(v.tab, chromedp.Evaluate[T](expression))
	if err != nil {
		v.t.Fatal(err)
	}
	return got
}

// openPage opens the page with this hash in its address.
func (v *visit) openPage(hash string) {
	v.t.Helper()
	evaluateJS[string](v, fmt.Sprintf(`location.hash = %q`, hash))
}

func (v *visit) failOn(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

func TestPageShowsHoldersAndWaiters(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.awaitTexts(`#l-table`, "billing/month-end", "batch-1 pid 4121 (billing), \"month end\"", "legacy/export", "no end", "another library")
	v.awaitTexts(`#headline`, "to look at")
	v.openPage("lock=billing/month-end")
	v.awaitTexts(`#d-name`, "billing/month-end")
	v.awaitTexts(`#d-facts`, "batch-1", "Lease left", "Token")
	v.doSteps(waitUntil(`document.querySelectorAll("#d-queue li").length === 3`))
	if got := evaluateJS[string](v, `[...document.querySelectorAll("#d-queue li")]
		.map((li) => li.textContent.split(" ")[0]).join(" ")`); got != "batch-3 batch-2 batch-4" {
		t.Errorf("queue = %s", got)
	}
	v.doSteps(waitUntil(`document.querySelectorAll("#d-votes tbody tr").length === 3`))
	for _, s := range v.servers {
		v.awaitTexts(`#d-votes`, s.Addr())
		v.awaitTexts(`#nodes`, s.Addr())
	}
	v.doSteps(waitUntil(`/Found|Nothing/.test(document.getElementById("doc-text").textContent)`))
	v.awaitTexts(`#doc-rest summary`, "checks")
}

// Other clients choose names, hosts and notes.
func TestForeignTextIsNotMarkup(t *testing.T) {
	v := openConsole(t, 1)
	const markup = `<img src=x onerror=alert(1)><script>alert(2)</script>&lt;"'`
	v.failOn(v.holdLocks(t.Context(), holdfast.Holder{Host: markup, Program: "\u202eprogram"}, "note "+markup, markup+"\u202e", "plain"))
	shown := func(selector string, times int) {
		t.Helper()
		v.doSteps(waitUntil(fmt.Sprintf(`document.querySelector(%q).textContent.split(%q).length > %d`, selector, markup, times)))
	}
	shown(`#l-table`, 3) // the name and two hosts; Go quotes the notes
	v.awaitTexts(`#l-table`, markup+`\u{202e}`, "plain")
	v.openPage("lock=" + url.QueryEscape(markup+"\u202e"))
	shown(`#d-name`, 1)
	shown(`#d-facts`, 1)
	if got := evaluateJS[int](v, `document.querySelectorAll("main img, main script, header img").length`); got != 0 {
		t.Errorf("the page has %d elements of a name", got)
	}
	if got := evaluateJS[int](v, `document.body.textContent.split("\u202e").length - 1`); got != 0 {
		t.Errorf("the page has %d changes of direction", got)
	}
}

func TestPageShowsChanges(t *testing.T) {
	v := openConsole(t, 3)
	v.awaitTexts(`#l-empty`, "No locks")
	v.awaitTexts(`#headline`, "All well")
	c, err := v.newClient(t.Context(), holdfast.Holder{Host: "web-1", PID: 1})
	v.failOn(err)
	lease, err := c.Acquire(t.Context(), "job", nil)
	v.failOn(err)
	v.awaitTexts(`#l-table`, "job", "web-1")
	v.failOn(lease.Release(t.Context()))
	v.awaitTexts(`#l-empty`, "No locks")
	v.servers[2].Kill()
	v.awaitTexts(`#headline`, "DEGRADED: 1 of 3 nodes")
	v.awaitTexts(`#nodes`, "DOWN")
	v.awaitTexts(`#doc-table`, "FAULT", v.servers[2].Addr()) // the doctor runs again
	v.servers[1].Kill()
	v.awaitTexts(`#headline`, "NO MAJORITY: 2 of 3 nodes")
	v.failOn(v.servers[1].Restart(t.Context()))
	v.failOn(v.servers[2].Restart(t.Context()))
	v.awaitTexts(`#headline`, "All well")
	v.failOn(v.console.Process.Kill())
	v.awaitTexts(`#headline`, "NOT LIVE")
	if evaluateJS[string](v, `document.body.dataset.live`) != "no" {
		t.Error("the page looks live")
	}
	v.forgetErrors() // errors about the stopped console
}

// forgetErrors drops the browser's log of errors that the test has provoked.
func (v *visit) forgetErrors() {
	v.t.Cleanup(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.faults = nil
	})
}

// hiddenElements selects the elements that a user cannot scroll into view at the width of the page: outside the
// page, or clipped by a parent.
const hiddenElements = `[...document.querySelectorAll("header *, main *, dialog[open] *")].filter((e) => {
	const style = getComputedStyle(e), box = e.getBoundingClientRect();
	if (!e.checkVisibility() || e.closest("thead, .hidden") || e.matches("td:empty, option, select")) return false;
	return box.right > innerWidth + 1 || box.left < -1 || style.overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1 && !e.matches("input, dialog");
}).map((e) => e.tagName + "#" + e.id + " " + e.textContent.slice(0, 20)).slice(0, 3).join("; ")`

// visibleElements selects the visible elements with text of their own.
const visibleElements = `[...document.querySelectorAll("header *, main *, dialog[open] *")].filter((e) => {
	const box = e.getBoundingClientRect();
	return e.checkVisibility() && !e.closest("thead, .hidden, select") && box.width > 1 && box.height > 1 &&
		[...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
}).length`

// The test repeats this with letters of twice the size.
func TestNarrowAndEnlargedPagesShowEverything(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.servers[2].Kill() // shows an outage with its cause, and findings of the doctor
	v.awaitTexts(`#doc-table`, "FAULT", v.servers[2].Addr())
	v.failOn(v.holdLocks(t.Context(), holdfast.Holder{Host: strings.Repeat("long-host-", 12), Program: strings.Repeat("p", 60)},
		strings.Repeat("note", 16), strings.Repeat("long", 60)))
	views := map[string]func(){
		"list":   func() { v.openPage("") },
		"detail": func() { v.openPage("lock=" + strings.Repeat("long", 60)) },
		"dialog": func() {
			v.doSteps(chromedp.WaitVisible(`#d-force`), chromedp.Click(`#d-force`), chromedp.WaitVisible(`#f-reason`))
		},
	}
	texts := make(map[string]int)
	for _, name := range []string{"list", "detail", "dialog"} {
		v.doSteps(chromedp.EmulateViewport(1280, 900))
		views[name]()
		for _, size := range []struct{ width, zoom, letters int64 }{
			{1280, 1, 16}, {320, 1, 16}, {390, 1, 16}, {1280, 2, 16}, {1280, 4, 16}, {1280, 1, 32}, {640, 1, 32}, // a zoomed page is narrower
		} {
			_, err := chromedp.Call(v.tab, page.SetFontSizes, page.SetFontSizesParams{FontSizes: &page.FontSizes{Standard: size.letters}})
			v.failOn(err)
			v.doSteps(chromedp.EmulateViewport(size.width/size.zoom, 900/size.zoom, chromedp.EmulateScale(float64(size.zoom))))
			if name != "list" {
				v.doSteps(waitUntil(`document.querySelectorAll("#d-votes tbody tr").length === 3`))
			}
			v.doSteps(waitUntil(`document.querySelectorAll("#l-table tbody tr").length > 10`))
			if got := evaluateJS[int](v, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); got > 0 {
				t.Errorf("%s, %+v: %d pixels too wide", name, size, got)
			}
			if got := evaluateJS[string](v, hiddenElements); got != "" {
				t.Errorf("%s, %+v: %s is clipped", name, size, got)
			}
			if got := evaluateJS[int](v, visibleElements); texts[name] == 0 {
				texts[name] = got
			} else if got < texts[name] {
				t.Errorf("%s, %+v: %d texts are shown, of %d", name, size, got, texts[name])
			}
		}
	}
}

// The test logs the cost of the page; its bounds hold on a busy machine.
func TestPageStaysLiveWithTenThousandLocks(t *testing.T) {
	v := openConsole(t, 1)
	v.failOn(v.runOnFirstNode("EVAL", "for i = 0, 9999 do redis.call('SET', string.format('lock:n%05d', i), 'first', 'PX', 600000) end", "0"))
	ctx, stop := context.WithCancel(t.Context())
	var churning sync.WaitGroup
	churning.Go(func() { // 1,000 changes a second
		for round := 0; ctx.Err() == nil; round++ {
			if err := v.runOnFirstNode("EVAL", "for i = 1, 100 do redis.call('SET', string.format('lock:n%05d', math.random(0, 4999)), ARGV[1], 'PX', 600000) end",
				"0", fmt.Sprint("owner", round)); err != nil {
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); churning.Wait() })
	began := time.Now()
	v.doSteps(chromedp.Reload())
	v.awaitTexts(`#c-locks`, "10,000")
	v.awaitTexts(`#p-text`, "1 of 200")
	v.doSteps(waitUntil(`document.getElementById("c-hand_overs").textContent > "0.0"`))
	const paints = `performance.getEntriesByName("first-contentful-paint")`
	v.doSteps(waitUntil(paints + `.length === 1`)) // the browser records a paint only later
	t.Logf("the first paint after %d ms, all locks after %s", evaluateJS[int](v, `Math.round(`+paints+`[0].startTime)`),
		time.Since(began).Round(10*time.Millisecond))
	began = time.Now()
	v.doSteps(chromedp.Reload(), waitUntil(`document.querySelectorAll("#l-table tbody tr").length === 50`), waitUntil(paints+`.length === 1`))
	paint := evaluateJS[float64](v, paints+`[0].startTime`)
	t.Logf("opened again: the first paint after %.0f ms, 50 rows after %s", paint, time.Since(began).Round(time.Millisecond))
	if paint > 5000 {
		t.Errorf("the first paint took %.0f ms", paint)
	}

	before := v.pageCosts()
	time.Sleep(10 * time.Second) // ten refreshes while a thousand locks a second change
	after := v.pageCosts()
	work := (after["TaskDuration"] - before["TaskDuration"]) / 10 * 1000
	t.Logf("a second costs the page %.1f ms (%.1f ms of scripts, %.1f ms of layout); it has %.0f nodes, and %.1f MB", work,
		(after["ScriptDuration"]-before["ScriptDuration"])*100, (after["LayoutDuration"]-before["LayoutDuration"])*100, after["Nodes"], after["JSHeapUsedSize"]/1e6)
	if work > 500 {
		t.Errorf("a refresh takes the page %.0f ms", work)
	}

	v.tabTo("p-next")
	for turn := range 20 {
		v.pressKeys(kb.Enter)
		v.awaitTexts(`#p-text`, fmt.Sprint(turn+2, " of 200"))
		v.awaitTexts(`#l-table`, fmt.Sprintf("n%05d", 50*(turn+1)))
	}
	if elements := evaluateJS[int](v, `document.querySelectorAll("*").length`); elements > 1500 {
		t.Errorf("the page has %d elements", elements)
	}
	if nodes := v.pageCosts()["Nodes"]; nodes > 2*after["Nodes"] {
		t.Errorf("the browser keeps %.0f nodes after twenty pages, and had %.0f on the first", nodes, after["Nodes"])
	}

	v.pressKeys("/")
	began = time.Now()
	v.pressKeys("n07777")
	v.doSteps(waitUntil(`document.querySelectorAll("#l-table tbody tr").length === 1`))
	took := time.Since(began)
	t.Logf("a filter shows its lock after %s", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("a filter takes %s", took)
	}
	v.awaitTexts(`#p-text`, "1 of 1")
	v.failOn(v.runOnFirstNode("SET", "lock:n07777", "somebody", "PX", "600000"))
	v.tabTo("n07777")
	v.pressKeys(kb.Enter)
	v.awaitTexts(`#d-facts`, "somebody")
}

// pageCosts returns the resources that the page has used so far, by name: seconds, bytes and counts.
func (v *visit) pageCosts() map[string]float64 {
	v.t.Helper()
	_, err := chromedp.Call(v.tab, performance.Enable, performance.EnableParams{})
	v.failOn(err)
	v.failOn(func() error { _, err := chromedp.Call(v.tab, heapprofiler.CollectGarbage, cdp.Empty{}); return err }())
	got, err := chromedp.Call(v.tab, performance.GetMetrics, cdp.Empty{})
	v.failOn(err)
	all := make(map[string]float64)
	for _, m := range got.Metrics {
		all[m.Name] = m.Value
	}
	return all
}

func (s *stage) runOnFirstNode(args ...string) error { return s.runOnNode(0, args...) }

// The names of the locks would run code in a page that trusts them.
func TestNamesFromClientsAreOnlyText(t *testing.T) {
	v := openConsole(t, 1)
	name := `<img src=x onerror="document.title='gotcha'">`
	for _, key := range []string{name, "a\x1b[2J\u202eb", `&lt;b&gt;"'`} {
		v.failOn(v.runOnFirstNode("SET", "lock:"+key, `<script>document.title='gotcha'</script>`, "PX", "600000"))
	}
	v.awaitTexts(`#l-table`, name, `a\u{1b}[2J\u{202e}b`, `&lt;b&gt;"'`)
	v.doSteps(chromedp.Click(`#l-table tbody tr:first-child a`), chromedp.WaitVisible(`#detail`))
	v.awaitTexts(`#d-facts`, "<script>")
	if got := evaluateJS[int](v, `document.querySelectorAll("img, main script, b").length`); got != 0 {
		t.Errorf("%d elements were created from names", got)
	}
	if got := evaluateJS[string](v, `document.title`); strings.Contains(got, "gotcha") {
		t.Error("a name was executed as a script")
	}
}

// Every text must have the contrast of WCAG AA, 4.5 to 1.
func TestTextHasContrastInLightAndDark(t *testing.T) {
	v := openConsole(t, 3)
	v.failOn(v.setUpLocks(t.Context()))
	v.servers[2].Kill()
	v.openPage("lock=billing/month-end")
	v.awaitTexts(`#headline`, "DEGRADED")
	v.doSteps(chromedp.WaitVisible(`#d-votes tbody tr`))
	for _, scheme := range []string{"light", "dark"} {
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
		if _, err := chromedp.Call(v.tab, emulation.SetEmulatedMedia, media); err != nil {
			t.Fatal(err)
		}
		if got := evaluateJS[string](v, contrast); got != "" {
			t.Errorf("%s: %s", scheme, got)
		}
	}
}

// contrast selects elements whose text has too little contrast.
const contrast = `(() => {
  const rgb = (c) => c.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")]
    .filter((e) => e.checkVisibility() && !e.disabled && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .map((e) => { const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e)); return [e, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]; })
    .filter(([, ratio]) => ratio < 4.5).map(([e, ratio]) => e.tagName + " " + e.textContent.trim().slice(0, 20) + " " + ratio.toFixed(1)).join("; ");
})()`
