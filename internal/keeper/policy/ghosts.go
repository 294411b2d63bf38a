package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// Ghosts remember how often entries were used that have left: one that comes back was
// needed again, and counts its earlier uses. They are a table of small buckets, each
// ordered by when entries left, so their memory is fixed and what has been gone for longest
// is forgotten first. The methods may be called concurrently.
type Ghosts struct {
	mu      sync.Mutex
	buckets []bucket
}

// bucket holds a tag and a count of uses for each key, the one that left last in front. 0 is
// empty.
type bucket [8]uint32

// GhostKeys is how many keys are worth remembering: a million, for 4 MiB.
const GhostKeys = 1 << 20

// NewGhosts returns an empty table for that many keys or up to twice as many, of 4 bytes each.
func NewGhosts(keys int) *Ghosts {
	n := 1
	for n*len(bucket{}) < keys {
		n *= 2
	}
	return &Ghosts{buckets: make([]bucket, n)}
}

// find returns the bucket of a mixed key, its place there or -1, and its tag. Bits 32 and
// up are the tag, the low ones the bucket.
func (g *Ghosts) find(mixed uint64) (b *bucket, place int, tag uint32) {
	b = &g.buckets[mixed&uint64(len(g.buckets)-1)]
	tag = uint32(mixed>>32) &^ (1<<usesBits - 1)
	for i, slot := range b {
		if slot&(1<<usesBits-1) != 0 && slot&^(1<<usesBits-1) == tag {
			return b, i, tag
		}
	}
	return b, -1, tag
}

// Leave remembers an entry that leaves after so many uses. key is as in Tuner.Use.
func (g *Ghosts) Leave(key uint64, uses int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, place, tag := g.find(mix(key))
	if place < 0 {
		place = len(b) - 1
	}
	copy(b[1:place+1], b[:place])
	b[0] = tag | uint32(min(max(uses, 1), MaxUses))
}

// Return forgets an entry that comes back, and returns how often it was used before it
// left, at most MaxUses; 0 if that is not known.
func (g *Ghosts) Return(key uint64) (uses int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, place, _ := g.find(mix(key))
	if place < 0 {
		return 0
	}
	uses = int(b[place] & (1<<usesBits - 1))
	copy(b[place:], b[place+1:])
	b[len(b)-1] = 0
	return uses
}

// MarshalBinary returns what is remembered: little-endian, the number of buckets (4 bytes), and
// for each bucket that is not empty how many empty ones are before it (a varint), how many
// keys it has (1 byte), and its slots (4 bytes each). That is at most 5 bytes for each key.
func (g *Ghosts) MarshalBinary() ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(g.buckets)))
	empty := uint64(0)
	for i := range g.buckets {
		n := g.buckets[i].len()
		if n == 0 {
			empty++
			continue
		}
		b = append(binary.AppendUvarint(b, empty), byte(n))
		for _, slot := range g.buckets[i][:n] {
			b = binary.LittleEndian.AppendUint32(b, slot)
		}
		empty = 0
	}
	return b, nil
}

func (b *bucket) len() int {
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	return n
}

var errGhosts = errors.New("damaged list of what has left")

// UnmarshalBinary replaces what is remembered by what MarshalBinary returned. After an error
// nothing has changed. Where the number of buckets was another one, nothing is remembered.
func (g *Ghosts) UnmarshalBinary(b []byte) error {
	if len(b) < 4 {
		return fmt.Errorf("%w: it has %d bytes", errGhosts, len(b))
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > GhostKeys || bits.OnesCount(uint(n)) != 1 {
		return fmt.Errorf("%w: %d buckets", errGhosts, n)
	}
	buckets, at := make([]bucket, n), uint64(0)
	for b = b[4:]; len(b) > 0; at++ {
		empty, size := binary.Uvarint(b)
		if size <= 0 || size > 1 && b[size-1] == 0 || empty >= uint64(n)-at || len(b) == size {
			return fmt.Errorf("%w: no bucket after that with number %d", errGhosts, at)
		}
		at += empty
		keys := int(b[size])
		if b = b[size+1:]; keys < 1 || keys > len(bucket{}) || len(b) < 4*keys {
			return fmt.Errorf("%w: %d keys in bucket %d", errGhosts, keys, at)
		}
		for i := range keys {
			slot := binary.LittleEndian.Uint32(b[4*i:])
			if uses := slot & (1<<usesBits - 1); uses < 1 || uses > MaxUses {
				return fmt.Errorf("%w: %d uses in bucket %d", errGhosts, uses, at)
			}
			buckets[at][i] = slot
		}
		b = b[4*keys:]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == len(g.buckets) {
		g.buckets = buckets
	} else {
		clear(g.buckets)
	}
	return nil
}

// mix spreads a key over all bits (the finalizer of SplitMix64), so that callers may use
// counters as well as hashes.
func mix(key uint64) uint64 {
	key += 0x9e3779b97f4a7c15
	key = (key ^ key>>30) * 0xbf58476d1ce4e5b9
	key = (key ^ key>>27) * 0x94d049bb133111eb
	return key ^ key>>31
}
