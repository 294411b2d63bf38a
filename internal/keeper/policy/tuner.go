package policy

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// factors are the bonuses that are tried, in units of the time that an entry without
// further use stays in the cache under LRU. The first is LRU.
func factors() []float64 { return []float64{0, 1. / 8, 1. / 4, 1. / 2, 1, 2, 4} }

// Options describe a Tuner. The zero value of a field means its default.
type Options struct {
	// CapacityBytes is the size of the cache. It must be set.
	CapacityBytes int64
	// SampleEntries bounds the entries that are simulated, and with them the memory:
	// about 140 bytes each. With fewer, the tuner decides later and less surely.
	// Default 16384.
	SampleEntries int
}

// Tuner watches the uses of a cache's entries and finds the bonus that serves most. Its
// methods may be called concurrently.
//
// It simulates caches of a sampled part of the keys, each with that part of the capacity
// and with another bonus, and compares what they serve with what LRU would serve.
type Tuner struct {
	bonus     atomic.Int64  // time.Duration
	threshold atomic.Uint64 // keys whose mixed value is at most this are in the sample; it falls

	mu            sync.Mutex
	o             Options
	slots         []slot
	free          []int32
	byKey         map[uint64]int32
	trials        []trial // one for each factor, and then one with the bonuses that were chosen
	guard         guard
	residenceMs   float64 // mean age of LRU's victims since their last use, fading
	sinceDecision int
	full          bool  // the simulated LRU has had a victim
	lastMs        int64 // time of the last sampled use
}

// slot is a sampled entry that at least one trial holds.
type slot struct {
	mixed     uint64
	sizeBytes int64
	lastMs    int64
	uses      uint8  // 1 to MaxUses
	in        uint16 // bit i: trial i holds it
}

// NewTuner returns a Tuner whose bonus is zero until one has proved better.
func NewTuner(o Options) *Tuner {
	o.SampleEntries = cmp.Or(o.SampleEntries, 16384)
	t := &Tuner{o: o, byKey: map[uint64]int32{}}
	t.threshold.Store(math.MaxUint64)
	for _, f := range factors() {
		t.trials = append(t.trials, newTrial(f))
	}
	t.trials = append(t.trials, newTrial(0))
	return t
}

// chosen returns the trial that goes by the bonuses that were chosen, and its number.
func (t *Tuner) chosen() (*trial, int) {
	k := len(t.trials) - 1
	return &t.trials[k], k
}

// choose makes a trial's bonus the one that holds.
func (t *Tuner) choose(k int) {
	chosen, _ := t.chosen()
	chosen.bonusMs = t.trials[k].bonusMs
	t.bonus.Store(chosen.bonusMs * int64(time.Millisecond))
}

// SetCapacity changes the size of the cache.
func (t *Tuner) SetCapacity(capacityBytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.o.CapacityBytes = capacityBytes
}

// Start sets the bonus that holds until the simulated caches have been full for the first time:
// one that has proved better before.
func (t *Tuner) Start(bonus time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	chosen, _ := t.chosen()
	chosen.bonusMs = max(0, bonus.Milliseconds())
	t.bonus.Store(int64(max(0, bonus)))
}

// Bonus returns the bonus for Score. It does not wait for other calls.
func (t *Tuner) Bonus() time.Duration { return time.Duration(t.bonus.Load()) }

// Use records a use of an entry: that it was read, or that it was written because it was
// not there. uses is how often it was used, this time and those before it last left included.
//
// key tells entries apart and stays the same if an entry leaves and comes back: a hash
// of its name, for example. nowMs is as in MakeHeat. Give uses that come together, such as
// the blocks of a prompt, the same time: they count as one event when bonuses are compared.
// Use the blocks of a chain from the last to the first.
//
// A use of a key for which Samples is false tells nothing.
func (t *Tuner) Use(key uint64, sizeBytes, nowMs int64, uses int) {
	mixed := mix(key)
	if mixed > t.threshold.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if mixed <= t.threshold.Load() {
		t.simulate(mixed, max(1, sizeBytes), nowMs, uint8(min(max(uses, 1), MaxUses)))
	}
}

// Samples reports whether uses of a key are simulated. Once it says false, it always does.
func (t *Tuner) Samples(key uint64) bool { return mix(key) <= t.threshold.Load() }

// simulate has all trials use a sampled entry.
func (t *Tuner) simulate(mixed uint64, sizeBytes, nowMs int64, uses uint8) {
	if nowMs != t.lastMs {
		t.lastMs = nowMs
		t.guard.prompts++
		for k := range t.trials {
			t.trials[k].endEvent()
		}
	}
	i, ok := t.byKey[mixed]
	if !ok {
		i = t.newSlot(mixed)
	}
	s := &t.slots[i]
	firstHit := s.in&1 != 0
	_, last := t.chosen()
	t.guard.compare(s.in&(1<<last) != 0, firstHit, sizeBytes)
	for k := range t.trials {
		hit := s.in&(1<<k) != 0
		if hit {
			t.trials[k].remove(i, s)
		}
		t.trials[k].compare(hit, firstHit, sizeBytes)
	}
	s.sizeBytes, s.lastMs, s.uses, s.in = sizeBytes, nowMs, uses, 0
	capacity := t.sampledCapacity()
	for k := range t.trials {
		if sizeBytes > capacity {
			continue
		}
		t.makeRoom(k, capacity-sizeBytes, nowMs)
		t.trials[k].push(i, s)
		s.in |= 1 << k
	}
	if s.in == 0 {
		t.release(i)
	}
	for len(t.byKey) > t.o.SampleEntries {
		t.halveSample(nowMs)
	}
	if t.guard.behind() {
		t.choose(0)
	}
	t.sinceDecision++
	if t.full && t.sinceDecision >= max(16, t.trials[0].entries/8) {
		t.decide()
	}
}

func (t *Tuner) sampledCapacity() int64 {
	return int64(float64(t.o.CapacityBytes) * (float64(t.threshold.Load()) / math.MaxUint64))
}

// makeRoom evicts from trial k until it uses at most so many bytes.
func (t *Tuner) makeRoom(k int, mostBytes, nowMs int64) {
	trial := &t.trials[k]
	for trial.usedBytes > mostBytes {
		i := trial.victim(t.slots)
		s := &t.slots[i]
		if k == 0 {
			t.full = true
			age := float64(max(0, nowMs-s.lastMs))
			t.observeResidence(age)
			t.guard.left(age, trial.entries)
		}
		trial.remove(i, s)
		if s.in &^= 1 << k; s.in == 0 {
			t.release(i)
		}
	}
}

func (t *Tuner) observeResidence(ms float64) {
	if t.residenceMs == 0 {
		t.residenceMs = ms
	}
	t.residenceMs += (ms - t.residenceMs) / float64(t.trials[0].entries)
}

func (t *Tuner) newSlot(mixed uint64) int32 {
	if len(t.free) == 0 {
		t.free = append(t.free, int32(len(t.slots)))
		t.slots = append(t.slots, slot{})
		for k := range t.trials {
			*t.trials[k].links = append(*t.trials[k].links, Link{})
		}
	}
	i := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	t.slots[i] = slot{mixed: mixed, uses: 1}
	t.byKey[mixed] = i
	return i
}

func (t *Tuner) release(i int32) {
	delete(t.byKey, t.slots[i].mixed)
	t.free = append(t.free, i)
}

// halveSample halves the part of the keys that is sampled.
func (t *Tuner) halveSample(nowMs int64) {
	threshold := t.threshold.Load() / 2
	t.threshold.Store(threshold)
	t.guard.scale(0.5)
	for mixed, i := range t.byKey {
		if mixed <= threshold {
			continue
		}
		s := &t.slots[i]
		for k := range t.trials {
			if s.in&(1<<k) != 0 {
				t.trials[k].remove(i, s)
			}
		}
		t.release(i)
	}
	for k := range t.trials {
		t.makeRoom(k, t.sampledCapacity(), nowMs)
	}
}

// decide chooses the bonus and sets those of the trials anew. What trials served counts
// half after four times as many uses as the simulated LRU has entries.
func (t *Tuner) decide() {
	entries := float64(max(64, t.trials[0].entries))
	fade := math.Exp2(-float64(t.sinceDecision) / (4 * entries))
	t.sinceDecision = 0
	best, most := 0, 0.0
	_, last := t.chosen()
	for k := range t.trials[:last] {
		trial := &t.trials[k]
		if surplus := trial.surplus(); surplus > most {
			best, most = k, surplus
		}
		trial.fade(fade)
		trial.bonusMs = int64(math.Round(trial.factor * t.residenceMs))
	}
	t.guard.fade(fade)
	if t.guard.early() || t.guard.changing() || t.guard.behind() {
		best = 0
	}
	t.choose(best)
}
