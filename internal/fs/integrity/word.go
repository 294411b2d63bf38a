package integrity

// word is the sum of a range in the lower bits, and its degree in the upper two. 0 is unknown.
type word uint64

// degree says what a mismatch means, see the package's comment.
type degree uint8

const (
	unknown degree = iota
	soft
	firm
	confirmed
)

const (
	degreeShift = 62
	sumMask     = 1<<degreeShift - 1
)

func newWord(sum uint64, d degree) word { return word(sum&sumMask) | word(d)<<degreeShift }

func (w word) degree() degree { return degree(w >> degreeShift) }

// is reports whether a sum is the word's.
func (w word) is(sum uint64) bool { return uint64(w)&sumMask == sum&sumMask }

// atMost returns the word with a lower degree, if its own is higher.
func (w word) atMost(d degree) word {
	if w.degree() <= d {
		return w
	}
	return newWord(uint64(w), d)
}

// table has the words of a file's whole ranges, in chunks, so that a sparse file takes memory only for what
// was written: at worst a chunk for each range.
type table map[int64]*chunk

const chunkRanges = 32

type chunk [chunkRanges]word

func (t table) get(k int64) word {
	if c := t[k/chunkRanges]; c != nil {
		return c[k%chunkRanges]
	}
	return 0
}

// set sets a range's word. Where that takes a further chunk, more is asked for it; set reports whether the table has
// the word.
func (t table) set(k int64, w word, more func() bool) bool {
	c := t[k/chunkRanges]
	if c == nil {
		if w == 0 {
			return true
		}
		if !more() {
			return false
		}
		c = new(chunk)
		t[k/chunkRanges] = c
	}
	c[k%chunkRanges] = w
	return true
}

// reset makes a range unknown.
func (t table) reset(k int64) {
	if c := t[k/chunkRanges]; c != nil {
		c[k%chunkRanges] = 0
	}
}

// clear makes the ranges from first to last unknown.
func (t table) clear(first, last int64) {
	if last-first > int64(len(t))*chunkRanges { // a huge hole
		for i, c := range t {
			for j := range c {
				if k := i*chunkRanges + int64(j); first <= k && k <= last {
					c[j] = 0
				}
			}
		}
		return
	}
	for k := first; k <= last; k++ {
		t.reset(k)
	}
}

// limit lowers every degree to at most d.
func (t table) limit(d degree) {
	for _, c := range t {
		for j := range c {
			c[j] = c[j].atMost(d)
		}
	}
}
