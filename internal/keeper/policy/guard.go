package policy

import "math"

// guard says when no bonus is to be trusted, however much it has served in its trial.
type guard struct {
	// How long entries stay under LRU: over about the last third of a cacheful, and over four.
	fastMs, slowMs float64
	victims        int // so far

	// What a simulated cache with the bonuses that were chosen has served beyond LRU, and what LRU has, both in bytes
	// and fading slowly.
	lead, served float64

	prompts int // events so far
}

const (
	fastResidence = 1. / 3 // in cachefuls
	slowResidence = 4.

	// fewestPrompts is how many have to be seen before any bonus is chosen: a short load, or the beginning of a long
	// one, is often one that grows.
	fewestPrompts = 750

	// mostChange is by which factor the two may differ.
	mostChange = 5. / 3

	// mostAge is how many times as old as they usually are victims count as. A night without requests, or a clock of a trace
	// that jumps, makes a whole cacheful as old as it was long, which would take many cachefuls to forget.
	mostAge = 4

	// mostLoss is which part of what LRU has served a bonus may lose.
	mostLoss = 0.01

	// guardFades is how many times as slowly as a trial's gain what was served fades.
	guardFades = 16
)

// left tells of a victim of LRU that was last used so long ago, and how many entries that cache holds.
func (g *guard) left(ageMs float64, entries int) {
	if g.slowMs == 0 {
		g.fastMs, g.slowMs = ageMs, ageMs
	}
	if g.victims++; g.victims > entries {
		ageMs = min(ageMs, mostAge*g.slowMs)
	}
	g.fastMs += (ageMs - g.fastMs) / max(1, fastResidence*float64(entries))
	g.slowMs += (ageMs - g.slowMs) / max(1, slowResidence*float64(entries))
}

// compare tells of a use: whether the cache with the chosen bonuses has served it, and whether LRU has.
func (g *guard) compare(hit, lruHit bool, sizeBytes int64) {
	if hit {
		g.lead += float64(sizeBytes)
	}
	if lruHit {
		g.lead -= float64(sizeBytes)
		g.served += float64(sizeBytes)
	}
}

// behind reports whether the chosen bonuses have cost more than they may. That their trials look better does not
// matter: each began with another content, and none has paid for the changes.
func (g *guard) behind() bool { return g.lead < -mostLoss*g.served }

// early reports whether too little was seen to trust anything.
func (g *guard) early() bool { return g.prompts < fewestPrompts }

// changing reports whether the load is changing: what served most before it did says nothing any more, and bonuses are
// measured by how long entries stay.
func (g *guard) changing() bool {
	return g.fastMs > mostChange*g.slowMs || g.slowMs > mostChange*g.fastMs
}

func (g *guard) fade(by float64) { g.scale(math.Pow(by, 1./guardFades)) }

func (g *guard) scale(by float64) {
	g.lead *= by
	g.served *= by
}
