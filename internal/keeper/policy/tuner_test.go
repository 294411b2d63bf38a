package policy

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// check checks what must hold between the slots and the trials.
func (t *Tuner) check() error {
	if len(t.byKey) > t.o.SampleEntries || len(t.slots) > t.o.SampleEntries+1 {
		return fmt.Errorf("%d keys and %d slots; at most %d", len(t.byKey), len(t.slots), t.o.SampleEntries)
	}
	if len(t.byKey)+len(t.free) != len(t.slots) {
		return fmt.Errorf("%d keys, %d free slots, %d slots", len(t.byKey), len(t.free), len(t.slots))
	}
	for mixed, i := range t.byKey {
		if s := t.slots[i]; s.mixed != mixed || mixed > t.threshold.Load() || s.in == 0 {
			return fmt.Errorf("slot %d of key %x: %+v", i, mixed, s)
		}
	}
	for k := range t.trials {
		trial := &t.trials[k]
		var bytes int64
		entries := 0
		for u := range trial.byUses {
			q := &trial.byUses[u]
			last := int64(-1)
			for i := q.Oldest(); i != NoSlot; i = q.Newer(i) {
				s := t.slots[i]
				if s.in&(1<<k) == 0 || int(s.uses) != u+1 || s.lastMs < last {
					return fmt.Errorf("trial %d: slot %d: %+v after %d", k, i, s, last)
				}
				last = s.lastMs
				bytes += s.sizeBytes
				entries++
			}
		}
		if bytes != trial.usedBytes || entries != trial.entries || bytes > t.sampledCapacity() {
			return fmt.Errorf("trial %d: %d bytes in %d entries, recorded %d in %d, capacity %d", k, bytes, entries, trial.usedBytes, trial.entries, t.sampledCapacity())
		}
	}
	return nil
}

// counted counts the uses that it tells a tuner.
type counted struct {
	*Tuner
	uses map[uint64]int
}

func tune(o Options) counted { return counted{NewTuner(o), map[uint64]int{}} }

func (c counted) use(key uint64, sizeBytes, nowMs int64) {
	c.uses[key]++
	c.Use(key, sizeBytes, nowMs, c.uses[key])
}

// Whatever is used, the trials stay within their capacity and the sample within its bound.
func TestTunerKeepsItsBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 2))
	for range 20 {
		u := tune(Options{CapacityBytes: 1 + r.Int64N(1<<r.IntN(13)), SampleEntries: 1 + r.IntN(300)})
		keys, largest := 1+r.Uint64N(3000), 1+r.Int64N(50)
		now := int64(0)
		for range 3000 {
			now += r.Int64N(3)
			u.use(r.Uint64N(keys), r.Int64N(largest), now)
		}
		if err := u.check(); err != nil {
			t.Fatal(err)
		}
	}
}

// halving brings the sample under its bound without touching what stays.
func TestSampleShrinksWithTheNumberOfEntries(t *testing.T) {
	u := NewTuner(Options{CapacityBytes: 1 << 40, SampleEntries: 1000})
	for key := range uint64(100_000) {
		u.Use(key, 1<<20, int64(key), 1)
	}
	if err := u.check(); err != nil {
		t.Fatal(err)
	}
	if n := len(u.byKey); n < 400 {
		t.Errorf("%d of at most 1000 entries are simulated", n)
	}
}

// hot uses a set of entries that returns after other entries have passed, more than LRU
// can hold between two uses.
func hot(u counted, rounds int) {
	now, once := int64(0), uint64(1)<<40
	for range rounds {
		for key := range uint64(50) {
			u.use(key, 10, now)
			for range 4 {
				once++
				now += 1000
				u.use(once, 10, now)
			}
		}
	}
}

func TestTunerFindsABonus(t *testing.T) {
	u := tune(Options{CapacityBytes: 1000})
	if u.Bonus() != 0 {
		t.Errorf("it begins with a bonus of %v", u.Bonus())
	}
	hot(u, 40)
	if u.Bonus() < 100*time.Second {
		t.Errorf("a bonus of %v, where 50 entries return every 200 s and LRU holds 100 s", u.Bonus())
	}
}

// Where entries are used five times in a row and never again, any bonus would keep what is
// dead.
func TestTunerStaysWithLRU(t *testing.T) {
	u := tune(Options{CapacityBytes: 1000})
	hot(u, 20)
	if u.Bonus() == 0 {
		t.Fatal("no bonus to give up")
	}
	now := int64(1 << 40)
	for i := range uint64(4000) {
		for use := range uint64(5) { // eighty entries are in their five uses at once
			now++
			u.use(1<<41+i+use*16, 10, now)
		}
	}
	if u.Bonus() != 0 {
		t.Errorf("a bonus of %v for entries that are dead after their fifth use", u.Bonus())
	}
}

func TestTunerOfAbsurdSizes(t *testing.T) {
	for _, capacity := range []int64{-1, 0, 1, 1 << 62} {
		u := tune(Options{CapacityBytes: capacity, SampleEntries: 16})
		for i := range uint64(1000) {
			u.use(i%40, int64(i%3)<<61, int64(i))
			u.use(i%7, -5, int64(1000-i)) // time goes back
			if i == 500 {
				u.SetCapacity(1 << 10)
			}
		}
		if u.Bonus() < 0 {
			t.Errorf("capacity %d: a bonus of %v", capacity, u.Bonus())
		}
	}
}

func TestTunerConcurrently(t *testing.T) {
	u := NewTuner(Options{CapacityBytes: 500, SampleEntries: 200})
	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			for i := range uint64(2000) {
				u.Use(i%(100*(g+1)), 1, int64(i), int(i)/100)
				u.Bonus()
			}
			u.SetCapacity(600)
		})
	}
	all.Wait()
	for i, trial := range u.trials {
		if trial.usedBytes > 600 {
			t.Errorf("trial %d holds %d bytes", i, trial.usedBytes)
		}
	}
}

func BenchmarkTunerUse(b *testing.B) {
	for name, keys := range map[string]uint64{"all sampled": 4000, "a million keys": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			u := NewTuner(Options{CapacityBytes: int64(keys) / 2})
			r := rand.New(rand.NewPCG(1, 1))
			for i := range b.N {
				u.Use(r.Uint64N(keys), 1, int64(i), 1+i%MaxUses)
			}
		})
	}
}
