// Console drives the web console of holdfast in a headless Chromium, over real servers. As a program it takes
// the pictures in docs; its tests check the page against docs/console.md.
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-go/holdfast"
)

func main() {
	out := flag.String("out", "../docs/console", "folder for the pictures")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := takePictures(ctx, *out)
	if dir, _ := buildProgram(); dir != "" {
		os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

// picture describes one screenshot of the page.
type picture struct {
	name          string
	width, height int64
	dark          bool
	lock          string // lock with open details
	dialog        bool
	doctor        bool // show the doctor instead of the locks
	down          int  // number of a node to kill first
}

func takePictures(ctx context.Context, out string) error {
	s, err := newStage(ctx, 3)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.setUpLocks(ctx); err != nil {
		return err
	}
	if err := s.startConsole(ctx, strings.TrimSuffix(s.backendURL(), "?quarantine=off")); err != nil {
		return err
	}
	tab, end, err := newTab(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, p := range []picture{
		{name: "light", width: 1280, height: 800, lock: "billing/month-end"},
		{name: "dark", width: 1280, height: 800, dark: true, lock: "billing/month-end"},
		{name: "narrow", width: 390, height: 844},
		{name: "force", width: 1280, height: 800, lock: "billing/month-end", dialog: true},
		{name: "doctor", width: 1280, height: 640, doctor: true},
		{name: "outage", width: 1280, height: 640, down: 1},
	} {
		if p.down > 0 {
			s.servers[p.down].Kill()
			time.Sleep(2 * time.Second) // let every view notice
		}
		if err := s.takePicture(tab, out, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// setUpLocks creates the holders and waiters of an ordinary night.
func (s *stage) setUpLocks(ctx context.Context) error {
	who := func(host string, pid int, program string) holdfast.Holder {
		return holdfast.Holder{Host: host, PID: pid, Program: program}
	}
	for _, h := range []struct {
		holder holdfast.Holder
		note   string
		names  []string
	}{
		{who("batch-1", 4121, "billing"), "month end", []string{"billing/month-end"}},
		{who("batch-2", 977, "billing"), "", []string{"billing/dunning", "billing/exchange-rates"}},
		{who("web-1", 31, "shop"), "", []string{"cache/prices", "cache/stock"}},
		{who("web-2", 31, "shop"), "", []string{"cache/search"}},
		{who("etl-1", 88, "import"), "nightly import", []string{"import/customers", "import/orders"}},
		{who("etl-2", 90, "import"), "", []string{"import/suppliers"}},
		{who("cron-1", 1290, "holdfast"), "", []string{"jobs/backup", "jobs/certificates", "jobs/cleanup"}},
	} {
		if err := s.holdLocks(ctx, h.holder, h.note, h.names...); err != nil {
			return err
		}
	}
	for i, host := range []string{"batch-3", "batch-2", "batch-4"} {
		if err := s.waitForLock(ctx, who(host, 5000+i, "billing"), "billing/month-end"); err != nil {
			return err
		}
	}
	for node := range s.servers {
		if err := s.runOnNode(node, "SET", "lock:legacy/export", "made elsewhere"); err != nil {
			return err
		}
	}
	return s.runOnNode(2, "DEL", "lock:cache/stock")
}

// takePicture takes a screenshot once the page has settled.
func (s *stage) takePicture(tab context.Context, out string, p picture) error {
	scheme := "light"
	if p.dark {
		scheme = "dark"
	}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(tab, emulation.SetEmulatedMedia, media); err != nil {
		return err
	}
	steps := []step{
		chromedp.EmulateViewport(p.width, p.height), chromedp.Navigate("about:blank"), chromedp.Navigate(s.url + "#lock=" + p.lock),
		chromedp.WaitVisible(`#l-table tbody tr`), waitUntil(`/Found|Nothing/.test(document.getElementById("doc-text").textContent)`),
	}
	if p.lock != "" {
		steps = append(steps, chromedp.WaitVisible(`#d-votes tbody tr`))
	}
	if p.dialog {
		steps = append(steps, chromedp.Click(`#d-force`), chromedp.WaitVisible(`#f-reason`),
			chromedp.SendKeys(`#f-reason`, "batch-1 has lost its disk"), chromedp.SendKeys(`#f-name`, p.lock))
	}
	if p.doctor {
		steps = append(steps, chromedp.Click(`#c-doctor`))
	}
	if p.down > 0 {
		steps = append(steps, chromedp.WaitVisible(`#nodes [data-level=bad]`), waitUntil(`document.getElementById("c-doctor").textContent !== "sound"`))
	}
	if err := chromedp.Do(tab, steps...); err != nil {
		return err
	}
	shot, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return writePicture(filepath.Join(out, p.name+".png"), shot)
}

// writePicture writes a small PNG: with the 256 most frequent colours, and the nearest of these for each other
// one.
func writePicture(path string, shot []byte) error {
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return err
	}
	bounds, count := img.Bounds(), make(map[color.Color]int)
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			count[img.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	few := image.NewPaletted(bounds, colours[:min(len(colours), 256)])
	nearest := make(map[color.Color]uint8)
	for _, c := range colours {
		nearest[c] = uint8(few.Palette.Index(c))
	}
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			few.SetColorIndex(x, y, nearest[img.At(x, y)])
		}
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, few); err != nil {
		return err
	}
	return os.WriteFile(path, small.Bytes(), 0o644)
}

// step is an action of the user of a page, or a wait.
type step = chromedp.Action[chromedp.Void]

// waitUntil waits until a JavaScript expression is true.
func waitUntil(expression string) step {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		for {
			is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
			if err != nil || is {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("not true: %s: %w", expression, ctx.Err())
			}
		}
	})
}
