package classify

import "time"

// Evidence is what the files of a directory of RTP-LLM's or KVCM's say together. Such a file has no header, and what one alone looks
// like may have many reasons: another configuration writes blocks of another size, and KVCM's names may be anybody's. So Certain asks for
// witnesses before a file is removed. The zero value has none.
type Evidence struct {
	Shape   Shape
	OwnLogs bool // a store of kv3fs's keeps its logs here

	sizes  map[sized]int
	whole  int       // files of one block that are as long as one
	hashed int       // of these, with keys as long as hashes are
	last   time.Time // when the last of them was written
}

// sized is what files have in common that may be whole, of a block size that is not Shape's.
type sized struct {
	blocks int
	bytes  int64
}

const (
	// wholeWitnesses is how many whole files say how large a block is, kvcmWitnesses how many that a directory is KVCM's, whose name does not say it.
	wholeWitnesses = 3
	kvcmWitnesses  = 16

	// leastHash and mostHash are how many digits a key of KVCM's has, a number of 64 bits without leading zeros: one in four
	// billion has fewer. Names that somebody has counted up have.
	leastHash, mostHash = 9, 16

	// mostSizes bounds the memory: where files have more sizes than that, nothing is certain.
	mostSizes = 1 << 12

	// together is within how much time the ranks write their parts of an item.
	together = DirectGrace
)

// Add takes a file of the directory into account. Of one that is young, a writer may still be at work on it.
func (e *Evidence) Add(f File, sizeBytes int64, modified time.Time, young bool) {
	if !f.hasBlocks() {
		return
	}
	if e.sizes == nil {
		e.sizes = map[sized]int{}
	}
	if len(e.sizes) <= mostSizes {
		e.sizes[sized{f.Blocks, sizeBytes}]++
	}
	if young || f.Blocks != 1 || sizeBytes <= 0 || sizeBytes != e.Shape.BlockBytes {
		return
	}
	e.whole++
	if len(f.Key) >= leastHash && len(f.Key) <= mostHash {
		e.hashed++
	}
	if modified.After(e.last) {
		e.last = modified
	}
}

// Certain reports whether what Broken says of a file of the directory can be nothing else than a writer that was not done. Add has been called for
// all files of the directory.
func (e *Evidence) Certain(f File, is Facts, t Trouble) bool {
	switch {
	case !f.hasBlocks():
		return true
	case f.Owner == KVCM && !e.OwnLogs && e.hashed < kvcmWitnesses:
		return false
	case t != Short && t != Long && t != Ragged:
		return true
	case t == Short && is.peersAgree():
		return true
	}
	is.Peers = nil
	return f.trouble(is, e.Shape) == t && e.isOdd(f, is)
}

// isOdd reports whether a file alone has its size, and its writer, or another one, has written blocks of the size that the others have since: files of
// another configuration are many of one size, and from its first one on, no more of the former size come.
func (e *Evidence) isOdd(f File, is Facts) bool {
	return e.whole >= wholeWitnesses && len(e.sizes) <= mostSizes && e.sizes[sized{f.Blocks, is.SizeBytes}] <= 1 && e.last.After(is.Modified)
}

// Peer is the same item of another rank.
type Peer struct {
	SizeBytes int64
	Modified  time.Time
}

// longestPeer returns the size of the longest one that may be whole, 0 where there is none.
func (is Facts) longestPeer(s Shape) (most int64) {
	for _, p := range is.Peers {
		if s.BlockBytes <= 0 || p.SizeBytes%s.BlockBytes == 0 {
			most = max(most, p.SizeBytes)
		}
	}
	return most
}

// peersAgree reports whether most of the ranks, and two at least, have the item in one size, larger than this one and than any other, and wrote it
// when this one was written. A single longer one may itself be wrong, or left by another configuration.
func (is Facts) peersAgree() bool {
	var most int64
	for _, p := range is.Peers {
		most = max(most, p.SizeBytes)
	}
	votes := 0
	for _, p := range is.Peers {
		if p.SizeBytes == most && p.Modified.Sub(is.Modified).Abs() <= together {
			votes++
		}
	}
	return most > is.SizeBytes && votes >= 2 && 2*votes > len(is.Peers)+1
}
