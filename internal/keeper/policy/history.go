package policy

// history remembers how often keys were used, also of entries that have left: one that
// comes back was needed again, and counts its earlier uses. It is a table of small
// buckets, each ordered by last use, so its memory is fixed and what was not used for
// longest is forgotten first.
type history struct {
	buckets []bucket
}

// bucket holds a tag and a count of uses for each key, the one used last in front. 0 is
// empty.
type bucket [8]uint32

func newHistory(keys int) history {
	n := 1
	for n*len(bucket{}) < keys {
		n *= 2
	}
	return history{make([]bucket, n)}
}

// find returns the bucket of a mixed key, its place there or -1, and its tag. Bits 32 and
// up are the tag, the low ones the bucket.
func (h history) find(mixed uint64) (b *bucket, place int, tag uint32) {
	b = &h.buckets[mixed&uint64(len(h.buckets)-1)]
	tag = uint32(mixed>>32) &^ (1<<usesBits - 1)
	for i, slot := range b {
		if slot&(1<<usesBits-1) != 0 && slot&^(1<<usesBits-1) == tag {
			return b, i, tag
		}
	}
	return b, -1, tag
}

// add counts a use and returns how many there were, at most MaxUses.
func (h history) add(mixed uint64) int {
	b, place, tag := h.find(mixed)
	uses := uint32(1)
	if place >= 0 {
		uses = min(MaxUses, b[place]&(1<<usesBits-1)+1)
	} else {
		place = len(b) - 1
	}
	copy(b[1:place+1], b[:place])
	b[0] = tag | uses
	return int(uses)
}

// uses returns how many uses are remembered.
func (h history) uses(mixed uint64) int {
	b, place, _ := h.find(mixed)
	if place < 0 {
		return 0
	}
	return int(b[place] & (1<<usesBits - 1))
}

// mix spreads a key over all bits (the finalizer of SplitMix64), so that callers may use
// counters as well as hashes.
func mix(key uint64) uint64 {
	key += 0x9e3779b97f4a7c15
	key = (key ^ key>>30) * 0xbf58476d1ce4e5b9
	key = (key ^ key>>27) * 0x94d049bb133111eb
	return key ^ key>>31
}
