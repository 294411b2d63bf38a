package index

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// kind is the kind of a record. The number is also the version of its format: a new
// format gets a new number.
type kind byte

const (
	rankSet   kind = iota + 1 // a rank has these properties
	reserved                  // pages were handed to a writer
	confirmed                 // pages belong to keys
	freed                     // pages belong to nobody
	cleared                   // no page of the space belongs to anybody
	forgot                    // a rank is unknown, and has no pages
	rested                    // pages belong to nobody, and no client uses them
	reopened                  // no client uses a page of a rank that was forgotten before

	lastKind = reopened
)

// record is one entry of the log. The last record that names a page of a rank says who
// owns it, and the last one that names a key says which page it has there.
//
// A page changes its owner without a record where believing the last record is safe. A
// reservation that ended leaves its page "reserved": after a restart the page is in
// quarantine, and then free. A page whose key was evicted stays with the key until the
// record of its next reservation. No record has a time: clocks are set, so after a
// restart nobody can tell how long ago it was.
type record struct {
	kind  kind
	space pageservice.Space
	rank  int

	// rankSet
	numPages int64
	dropped  bool // all earlier pages of the rank are gone
	stale    bool
	closed   bool // dropped pages may still be in use

	pages  []uint32 // reserved, confirmed, freed, rested
	hashes []uint64 // reserved: those of the keys, see hashKey
	keys   []string // confirmed
}

const (
	flagDropped = 1 << iota
	flagStale
	flagClosed
)

// encode returns the binary form of a record.
func (r *record) encode() []byte {
	size := 40 + len(r.space.Namespace) + len(r.space.Set) + 5*len(r.pages) + 8*len(r.hashes)
	for _, key := range r.keys {
		size += 2 + len(key)
	}
	b := make([]byte, 0, size)
	b = append(b, byte(r.kind))
	b = appendString(b, r.space.Namespace)
	b = appendString(b, r.space.Set)
	b = binary.AppendUvarint(b, uint64(r.rank))
	if r.kind == rankSet {
		flags := byte(0)
		for flag, set := range map[byte]bool{flagDropped: r.dropped, flagStale: r.stale, flagClosed: r.closed} {
			if set {
				flags |= flag
			}
		}
		b = binary.AppendUvarint(b, uint64(r.numPages))
		return append(b, flags)
	}
	b = binary.AppendUvarint(b, uint64(len(r.pages)))
	for i, page := range r.pages {
		b = binary.AppendUvarint(b, uint64(page))
		switch r.kind {
		case reserved:
			b = binary.LittleEndian.AppendUint64(b, r.hashes[i])
		case confirmed:
			b = appendString(b, r.keys[i])
		}
	}
	return b
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decode reads a record into r, whose slices it reuses; keys are parts of one string.
func (r *record) decode(b []byte) error {
	*r = record{pages: r.pages[:0], hashes: r.hashes[:0], keys: r.keys[:0]}
	d := decoder{b: b, text: string(b)}
	r.kind = kind(d.byte())
	if r.kind < rankSet || r.kind > lastKind {
		return fmt.Errorf("its kind %d is unknown: a later version of kv3fs may have written it", r.kind)
	}
	r.space.Namespace = d.string()
	r.space.Set = d.string()
	r.rank = int(d.uvarint(maxRank))
	if r.kind == rankSet {
		r.numPages = int64(d.uvarint(pageservice.MaxPages))
		flags := d.byte()
		r.dropped, r.stale, r.closed = flags&flagDropped != 0, flags&flagStale != 0, flags&flagClosed != 0
		if flags&^(flagDropped|flagStale|flagClosed) != 0 || r.numPages == 0 {
			d.bad = true
		}
		return d.end()
	}
	for n := d.uvarint(uint64(len(b))); n > 0 && !d.bad; n-- {
		r.pages = append(r.pages, uint32(d.uvarint(pageservice.MaxPages-1)))
		switch r.kind {
		case reserved:
			r.hashes = append(r.hashes, d.uint64())
		case confirmed:
			r.keys = append(r.keys, d.string())
		}
	}
	return d.end()
}

var errMalformed = errors.New("malformed record")

// decoder reads the fields of a record; bad stays set after the first error.
type decoder struct {
	b    []byte // what is left
	text string // the whole record
	bad  bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > most {
		d.bad = true
		return 0
	}
	d.take(n)
	return v
}

func (d *decoder) string() string {
	n := int(d.uvarint(uint64(len(d.b))))
	at := len(d.text) - len(d.b)
	if d.take(n) == nil {
		return ""
	}
	return d.text[at : at+n]
}

func (d *decoder) end() error {
	if d.bad || len(d.b) != 0 {
		return errMalformed
	}
	return nil
}
