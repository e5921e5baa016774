package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var oneSeed = flag.Uint64("seed", 0, "run this seed alone and, with -v, print its history")

// seedsVariable is the environment variable with the number of seeds.
const seedsVariable = "SEEDS"

func seedCount(t *testing.T) uint64 {
	n := uint64(1_000)
	if testing.Short() {
		n = 300
	}
	if text := os.Getenv(seedsVariable); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedsVariable, err)
		}
	}
	return n
}

// configOf returns the configuration for a seed.
func configOf(seed uint64) Config {
	return Config{Seed: seed, Class: Classes[seed%uint64(len(Classes))]}
}

// adoptionConfigOf returns the configuration for a seed with adopted leases. It skips the class without faults,
// which requires every lock to be free when a run ends: an adopted lock may stay under its former owner for a while.
func adoptionConfigOf(seed uint64) Config {
	return Config{Seed: seed, Class: Classes[1+seed%uint64(len(Classes)-1)], Storm: true, Adopt: true}
}

// total sums up runs.
type total struct {
	mu         sync.Mutex // guards the fields below
	runs       int
	events     int
	grants     int
	adopted    int
	lost       int
	writes     int
	refused    int
	unfenced   int
	unpromised map[Property]int
	recovery   []int64
	broken     []Report
}

func (sum *total) addReport(r Report) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	sum.runs++
	sum.events += r.Events
	sum.grants += r.Grants
	sum.adopted += r.Adopted
	sum.lost += r.Lost
	sum.writes += r.Writes
	sum.refused += r.Refused
	sum.unfenced += r.Unfenced
	for p, n := range r.Unpromised {
		if sum.unpromised == nil {
			sum.unpromised = make(map[Property]int)
		}
		sum.unpromised[p] += n
	}
	sum.recovery = append(sum.recovery, r.Recovery...)
	if len(r.Broken) > 0 {
		sum.broken = append(sum.broken, r)
	}
}

// p99 returns the 99th percentile of recovery beyond a TTL.
func (sum *total) p99() time.Duration {
	if len(sum.recovery) == 0 {
		return 0
	}
	slices.Sort(sum.recovery)
	return time.Duration(sum.recovery[len(sum.recovery)*99/100])
}

func (sum *total) String() string {
	p99, most := sum.p99(), time.Duration(0)
	if n := len(sum.recovery); n > 0 {
		most = time.Duration(sum.recovery[n-1])
	}
	return fmt.Sprintf("%5d runs, %9d events, %7d grants, %6d lost, %7d writes of which %5d refused, %d recoveries within TTL + %v (p99), %v (all); "+
		"without tokens %d updates lost; not promised: %v",
		sum.runs, sum.events, sum.grants, sum.lost, sum.writes, sum.refused, len(sum.recovery),
		p99.Round(time.Millisecond), most.Round(time.Millisecond), sum.unfenced, sum.unpromised)
}

// sweepSeeds runs the seeds from 1 on all processors. It stops early once enough runs have broken a property.
func sweepSeeds(n uint64, cfg func(seed uint64) Config, enough int) map[string]*total {
	sums := make(map[string]*total)
	for _, c := range Classes {
		sums[c.Name] = &total{}
	}
	var next, bad atomic.Uint64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1); seed <= n && bad.Load() < uint64(enough); seed = next.Add(1) {
				r := Run(cfg(seed))
				sums[r.Class].addReport(r)
				if len(r.Broken) > 0 {
					bad.Add(1)
				}
			}
		})
	}
	all.Wait()
	return sums
}

func TestSim(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		replayRun(t, configOf(*oneSeed))
		return
	}
	n := seedCount(t)
	start := time.Now()
	sums := sweepSeeds(n, configOf, 20)
	runs, grants, unfenced, overlaps := 0, 0, 0, 0
	for _, c := range Classes {
		sum := sums[c.Name]
		runs, grants = runs+sum.runs, grants+sum.grants
		unfenced, overlaps = unfenced+sum.unfenced, overlaps+sum.unpromised[P3]
		t.Logf("%-10s %v", c.Name, sum)
		if p99 := sum.p99(); c.promisesProperty(P5) && len(sum.recovery) >= 100 && p99 > time.Second { // of fewer times, p99 is the worst one
			t.Errorf("%s: recovery takes TTL + %v (p99), more than a second beyond the TTL", c.Name, p99)
		}
		slices.SortFunc(sum.broken, func(a, b Report) int { return a.Events - b.Events })
		for _, r := range sum.broken {
			t.Errorf("seed %d (%s, %d events): %v\n\tgo test ./sim -run 'TestSim$' -seed %d -v", r.Seed, r.Class, r.Events, r.Broken[0], r.Seed)
		}
	}
	if runs >= 100 && (unfenced == 0 || overlaps == 0) {
		t.Errorf("the faults are too weak: %d updates lost without tokens, %d overlaps where they are not excluded", unfenced, overlaps)
	}
	t.Logf("%d seeds, %d grants in %v", runs, grants, time.Since(start).Round(time.Millisecond))
}

// The promises hold while leases are adopted repeatedly.
func TestSimOfAdoptions(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		replayRun(t, adoptionConfigOf(*oneSeed))
		return
	}
	grants, adopted := 0, 0
	for name, sum := range sweepSeeds(seedCount(t)/10, adoptionConfigOf, 20) {
		grants, adopted = grants+sum.grants, adopted+sum.adopted
		for _, r := range sum.broken {
			t.Errorf("seed %d (%s, %d events): %v\n\tgo test ./sim -run TestSimOfAdoptions -seed %d -v", r.Seed, name, r.Events, r.Broken[0], r.Seed)
		}
	}
	t.Logf("%d grants, of them %d adoptions", grants, adopted)
	if adopted == 0 {
		t.Error("no lease was adopted")
	}
}

// A lease survives outages of one node after another, even if others wait for it.
func TestLeaseSurvivesOutages(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		var history strings.Builder
		r := RunOutages(*oneSeed, Rules{}, &history)
		t.Logf("seed %d\n%s%+v", *oneSeed, history.String(), r)
		return
	}
	n := seedCount(t)
	var sum total
	var next atomic.Uint64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1); seed <= n; seed = next.Add(1) {
				sum.addReport(RunOutages(seed, Rules{}, nil))
			}
		})
	}
	all.Wait()
	for _, r := range sum.broken {
		t.Errorf("seed %d: %v\n\tgo test ./sim -run TestLeaseSurvivesOutages -seed %d -v", r.Seed, r.Broken[0], r.Seed)
	}
	slices.Sort(sum.recovery)
	if len(sum.recovery) == 0 {
		t.Fatal("no lease survived an outage")
	}
	t.Logf("%d leases, %d outages; the holder had the node again within %v (p99), %v (all)", sum.runs, len(sum.recovery),
		time.Duration(sum.recovery[len(sum.recovery)*99/100]), time.Duration(sum.recovery[len(sum.recovery)-1]))
}

// Without restored locks, the lease ends or has lost a node for good.
func TestRestoredLocksKeepLeaseThroughOutages(t *testing.T) {
	t.Parallel()
	broken := 0
	for seed := range uint64(20) {
		if len(RunOutages(seed+1, Rules{NeverAnew: true}, nil).Broken) > 0 {
			broken++
		}
	}
	if broken < 15 {
		t.Errorf("%d of 20 leases ended or lost a node", broken)
	}
}

func replayRun(t *testing.T, cfg Config) {
	var history strings.Builder
	cfg.Log = &history
	r := Run(cfg)
	t.Logf("seed %d\n%s%+v", cfg.Seed, history.String(), r)
	for _, v := range r.Broken {
		t.Error(v)
	}
}

func TestSameSeedGivesSameRun(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 2*uint64(len(Classes)); seed++ {
		var first, second strings.Builder
		cfg := configOf(seed)
		cfg.Log = &first
		Run(cfg)
		cfg.Log = &second
		Run(cfg)
		if first.String() != second.String() {
			t.Fatalf("seed %d has two histories", seed)
		}
	}
}

// A check that never fails proves nothing: with one rule turned off, runs in which the rule matters must break
// its property. Some break in one run of thousands, which only a large number of seeds finds.
func TestDisabledRuleBreaksPromise(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		class  string
		storm  bool
		rules  Rules
		breaks Property
		rare   bool
		from   uint64 // first seed of the search: near a run known to break
	}{
		"commit looks at the owner":                         {"early", true, Rules{CommitAnybody: true}, P1, false, 0},
		"commit looks at the token of the node":             {"early", true, Rules{CommitAnyToken: true}, P1, true, 0},
		"tokens begin at the clock in older data":           {"older", false, Rules{NoFloor: true}, P1, false, 0},
		"tokens rise in older data":                         {"older", false, Rules{NoFloor: true}, P2, false, 0},
		"who forgot does not vote":                          {"amnesia", true, Rules{NoQuarantine: true}, P3, false, 0},
		"trust counts from the send":                        {"network", true, Rules{TrustFromReply: true}, P3, true, 0},
		"an id whose give-back is open ends":                {"network", true, Rules{ReuseID: true}, P3, true, 0},
		"trust in a hand-over counts from a send":           {"network", true, Rules{TrustFromWake: true}, P3, false, 6_321},
		"trust is shorter by what clocks drift":             {"clients", false, Rules{NoDrift: true}, P3, false, 0},
		"a late request shortens nothing":                   {"network", true, Rules{Shorten: true}, P3, false, 0},
		"trust ends":                                        {"clients", false, Rules{TrustForever: true}, P3, false, 0},
		"counters start at a time that two clocks agree on": {"hours", false, Rules{SeedAtAnyTime: true}, P2, false, 0},
	} {
		if tt.rare && seedCount(t) < 100_000 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			class := Classes[slices.IndexFunc(Classes, func(c Class) bool { return c.Name == tt.class })]
			for n := range uint64(100_000) {
				seed := max(tt.from, 1) + n
				r := Run(Config{Seed: seed, Class: class, Rules: tt.rules, Storm: tt.storm})
				if i := slices.IndexFunc(r.Broken, func(v Violation) bool { return v.Property == tt.breaks }); i >= 0 {
					t.Logf("run %d: %v", seed, r.Broken[i])
					return
				}
			}
			t.Errorf("%q was not broken", tt.breaks)
		})
	}
}
