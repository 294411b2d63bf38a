package policy

import "math"

// trial is a simulated cache that tries one bonus on the sampled entries. Entries are
// numbers of slots, which all trials share.
//
// Entries with the same number of uses have the same bonus, so within each number the one
// that was used least recently leaves first, and a victim is the lowest of the oldest of MaxUses queues.
type trial struct {
	factor    float64 // bonus in residence times
	bonusMs   int64
	usedBytes int64
	entries   int
	byUses    [MaxUses]Queue
	links     *Links // by slot

	// What this trial served beyond the first one, in bytes: by uses at the time of the
	// last one; by those before, fading; by the most recent of those, fading faster; the sum of
	// squares of the events, and how many there were that differ, both fading.
	event, gain, recent, variance, events float64
}

func newTrial(factor float64) trial {
	t := trial{factor: factor, links: new(Links)}
	for i := range t.byUses {
		t.byUses[i] = NewQueue(t.links)
	}
	return t
}

func (t *trial) push(i int32, s *slot) {
	t.byUses[s.uses-1].Push(i)
	t.usedBytes += s.sizeBytes
	t.entries++
}

func (t *trial) remove(i int32, s *slot) {
	t.byUses[s.uses-1].Remove(i)
	t.usedBytes -= s.sizeBytes
	t.entries--
}

// victim returns the slot with the lowest score. There must be one.
func (t *trial) victim(slots []slot) int32 {
	lowest, victim := int64(math.MaxInt64), NoSlot
	for beyondFirst := range t.byUses {
		oldest := t.byUses[beyondFirst].Oldest()
		if oldest == NoSlot {
			continue
		}
		if score := slots[oldest].lastMs + int64(beyondFirst)*t.bonusMs; score < lowest {
			lowest, victim = score, oldest
		}
	}
	return victim
}

// compare records what the trial and the first one made of the same use.
func (t *trial) compare(hit, firstHit bool, sizeBytes int64) {
	if hit == firstHit {
		return
	}
	if hit {
		t.event += float64(sizeBytes)
	} else {
		t.event -= float64(sizeBytes)
	}
}

// endEvent counts the uses at one time as one event. The blocks of a prompt are hit or
// missed together, so they are not independent evidence.
func (t *trial) endEvent() {
	t.gain += t.event
	t.recent += t.event
	t.variance += t.event * t.event
	if t.event != 0 {
		t.events++
	}
	t.event = 0
}

// fewestEvents is how many events must differ before a trial may win: with fewer, one that had luck
// with a few large prompts would.
const fewestEvents = 18

// recentFades is how many times as fast what counts as recent fades.
const recentFades = 10

// surplus is what the trial has served beyond the first one, less what chance may have
// given: two standard deviations, if events are independent. There is none while the trial loses of
// late: when a load changes, what was gained before it did says nothing any more.
func (t *trial) surplus() float64 {
	if t.events < fewestEvents || t.recent < 0 {
		return 0
	}
	return t.gain - 2*math.Sqrt(t.variance)
}

func (t *trial) fade(by float64) {
	t.gain *= by
	t.recent *= math.Pow(by, recentFades)
	t.variance *= by
	t.events *= by
}
