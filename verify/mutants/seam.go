package main

// seam is tests over the template of a driver, and over services that can do less.
func seam(tests ...string) suite {
	return suite{tier: "seam", module: ".", pkg: "./driver/template", tests: only(tests...), time: inProcessTime, stalls: true}
}

// plainly is cases of package locktest, over a service that can do little.
func plainly(cases ...string) suite {
	s := seam("TestConformanceOfAPlainService")
	s.tests += "/" + only(cases...)
	return s
}

// limits: what a driver declares, and what the client asks of it.
var limits = []mutant{
	{
		name: "fenced-is-ignored", rule: "a lease without a token is refused where one was asked for", file: "options.go",
		was: "case o.Fenced && !c.limits.Token:", is: "case o.Fenced && o.TTL < 0:",
		killers: []suite{seam("TestTheErrorNamesWhatTheDriverLacks"), plainly("WhatIsNotDeclaredIsRefused")},
	},
	{
		name: "min-hold-is-asked-of-every-driver", rule: "MinHold is refused where a driver cannot keep it", file: "options.go",
		was: "case o.MinHold > 0 && !c.limits.MinHold:", is: "case o.MinHold > 0 && o.TTL < 0:",
		killers: []suite{seam("TestTheErrorNamesWhatTheDriverLacks"), plainly("WhatIsNotDeclaredIsRefused")},
	},
	{
		name: "default-below-the-floor", rule: "the default TTL is one that the driver takes", file: "options.go",
		was: "max(defaultTTL, c.limits.MinTTL)", is: "defaultTTL",
		killers: []suite{seam("TestTheDefaultTTLIsNoShorterThanTheFloor")},
	},
	{
		name: "token-without-tokens", rule: "a holder has no token where the driver gives none", file: "driver/holder.go",
		was: "if token = g.Token; token != 0 {", is: "if token = g.Token; token >= 0 {",
		killers: []suite{seam("TestAGrantWithoutTokensIsPassedOnWithoutThem")},
	},
	{
		name: "rounded-ttl-passes-for-another", rule: "a hand-over compares what was asked for, not what was granted", file: "local.go",
		was: "case w.opts.TTL != t.asked:", is: "case w.opts.TTL != ttl:",
		killers: []suite{seam("TestAGrantWithoutTokensIsPassedOnWithoutThem")},
	},
	{
		name: "fixed-ttl-is-asked-for-anew", rule: "where a TTL cannot change, Extend asks for the one that was granted", file: "lease.go",
		was: "if c.limits.ChangeTTL {", is: "if ttl > 0 {",
		killers: []suite{seam("TestTheErrorNamesWhatTheDriverLacks")},
	},
}
