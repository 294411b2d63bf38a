package policy

import "time"

// MaxUses is the number of uses that count; further ones only renew the last use.
const MaxUses = 5

const (
	usesBits  = 3
	orderBits = 19
	maxOrder  = 1<<orderBits - 1
	maxMs     = 1<<(64-usesBits-orderBits) - 1 // the year 2109
)

// Heat is what the policy knows about the use of an entry: when it was last used, its
// place among entries used at the same time, and how often it was used, in 8 bytes. The
// zero Heat was never used. From high bits to low: milliseconds, order, uses.
type Heat uint64

// MakeHeat returns the heat of an entry that was used so many times, last at nowMs.
//
// nowMs is in milliseconds since any epoch, such as 1970, by a clock that does not go
// back. order breaks ties: of entries that were last used at the same time, the highest
// order leaves first. Give the blocks of one chain the same time and their place in the
// chain, so that leaves go before their root. Values out of range count as the nearest in
// range.
func MakeHeat(nowMs int64, order, uses int) Heat {
	ms := min(max(nowMs, 0), maxMs)
	place := min(max(order, 0), maxOrder)
	count := min(max(uses, 0), MaxUses)
	return Heat(ms)<<(orderBits+usesBits) | Heat(place)<<usesBits | Heat(count)
}

// Touch returns the heat after one more use.
func (h Heat) Touch(nowMs int64, order int) Heat { return MakeHeat(nowMs, order, h.Uses()+1) }

// Renew returns the heat after more of a use that was counted already, such as the next
// read of the same file by the same request.
func (h Heat) Renew(nowMs int64, order int) Heat { return MakeHeat(nowMs, order, max(1, h.Uses())) }

// LastUseMs returns the time of the last use.
func (h Heat) LastUseMs() int64 { return int64(h >> (orderBits + usesBits)) }

// Order returns the place among entries that were last used at the same time.
func (h Heat) Order() int { return int(h>>usesBits) & maxOrder }

// Uses returns how often the entry was used, at most MaxUses.
func (h Heat) Uses() int { return int(h & (1<<usesBits - 1)) }

// Score is the priority to stay: the entry with the lowest leaves first.
type Score uint64

// Score returns the entry's score with a bonus for each use beyond the first.
func (h Heat) Score(bonus time.Duration) Score {
	at := h.LastUseMs() + int64(max(0, h.Uses()-1))*max(0, bonus.Milliseconds())
	return Score(min(max(0, at), maxScoreMs))<<orderBits | Score(maxOrder-h.Order())
}

// maxScoreMs bounds scores where the bonus is absurd.
const maxScoreMs = 1<<(64-orderBits) - 1
