package policy

import "testing"

// A bonus that has served more in its trial is given up as soon as what was chosen has cost a hundredth of what LRU
// has served, and while entries stay for a time that is not what it was.
func TestGuard(t *testing.T) {
	const entries = 300
	var g guard
	for range 10 * entries {
		g.left(1000, entries)
	}
	if g.changing() {
		t.Error("a load is changing where entries always stay for a second")
	}
	for range entries / 2 {
		g.left(3000, entries)
	}
	if !g.changing() {
		t.Errorf("entries stay three times as long, and the load is not changing: %.0f of %.0f ms", g.fastMs, g.slowMs)
	}
	for range 20 * entries {
		g.left(3000, entries)
	}
	if g.changing() {
		t.Errorf("a load is changing that has changed long ago: %.0f of %.0f ms", g.fastMs, g.slowMs)
	}

	for range 1000 {
		g.compare(true, true, 10)
	}
	for range 10 {
		g.compare(false, true, 10)
	}
	if g.behind() {
		t.Errorf("behind by %.0f bytes of %.0f", g.lead, g.served)
	}
	g.compare(false, true, 10)
	if !g.behind() {
		t.Errorf("not behind by %.0f bytes of %.0f", g.lead, g.served)
	}
	for range 11 {
		g.compare(true, false, 10)
	}
	if g.behind() {
		t.Error("behind though it has made up for it")
	}
}

// After a pause that makes a cacheful a year old, the load counts as changing for a few cachefuls, not for many.
func TestGuardAfterPause(t *testing.T) {
	const entries = 300
	var g guard
	for range 10 * entries {
		g.left(1000, entries)
	}
	for range entries {
		g.left(3e10, entries)
	}
	n := 0
	for ; g.changing() || n < entries; n++ {
		if g.left(1000, entries); n > 100*entries {
			t.Fatal("the load is changing for ever")
		}
	}
	if cachefuls := float64(n) / entries; cachefuls > 8 {
		t.Errorf("the load is changing for %.1f cachefuls after a pause", cachefuls)
	}
}

// Loads change between one that needs a bonus and one that any bonus ruins, where entries are used five times and never
// again. What is lost at the changes stays below what was won, a fiftieth of what LRU has served, and a cacheful.
func TestChangesCostLittle(t *testing.T) {
	const capacity = 1000
	u := tune(Options{CapacityBytes: capacity})
	now, key := int64(0), uint64(1)
	use := func(k uint64, laterMs int64) {
		now += laterMs
		u.use(k, 10, now)
		if u.guard.lead < -0.02*u.guard.served-capacity {
			t.Fatalf("%.0f bytes behind LRU, which has served %.0f", -u.guard.lead, u.guard.served)
		}
	}
	chosen := 0
	for range 6 {
		for range 40 { // as hot has it
			for popular := range uint64(50) {
				use(1<<60+popular, 0)
				for range 4 {
					key++
					use(key, 1000)
				}
			}
		}
		if u.Bonus() > 0 {
			chosen++
		}
		for range 1500 {
			key++
			for range 5 {
				use(key, 200)
			}
		}
		if u.Bonus() != 0 {
			t.Errorf("a bonus of %v after 1500 entries that never returned", u.Bonus())
		}
	}
	if chosen < 3 {
		t.Errorf("a bonus was chosen in %d of 6 times that need one", chosen)
	}
}
