package journal

import (
	"encoding/binary"
	"os"
)

// bbolt maps its file into memory and believes what it finds there: a damaged page makes
// it fault, follow a circle for ever, or overwrite what is in use. So before bbolt opens
// the file, a walker follows the tree from its root, and checks each page: its number,
// kind and extent, the order of its keys, and that nothing else refers to it. It reads
// each page once, and no more than the file has.

const (
	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10

	headerBytes  = 16
	elementBytes = 16
	bucketFlag   = 1  // of an element that is a bucket
	bucketBytes  = 16 // of a bucket, before its page if that is inside
	keyBytes     = 8

	// maxDepth is more than any tree has that bbolt builds.
	maxDepth = 64
)

type walker struct {
	f     *os.File
	m     meta
	taken []uint64 // a bit for each page that something refers to
	buf   [maxDepth + 1][]byte
}

func newWalker(f *os.File, m meta, sizeBytes int64) (*walker, error) {
	if m.numPages > uint64(sizeBytes/m.pageBytes) {
		return nil, damaged("%d bytes are left of %d pages of %d bytes", sizeBytes, m.numPages, m.pageBytes)
	}
	return &walker{f: f, m: m, taken: make([]uint64, m.numPages/64+1)}, nil
}

// take notes that something refers to n pages.
func (w *walker) take(id, n uint64) error {
	if id < 2 || id >= w.m.numPages || n > w.m.numPages-id {
		return damaged("%d pages from page %d on, of %d", n, id, w.m.numPages)
	}
	for ; n > 0; id, n = id+1, n-1 {
		if bit := uint64(1) << (id % 64); w.taken[id/64]&bit != 0 {
			return damaged("page %d is in use twice", id)
		} else {
			w.taken[id/64] |= bit
		}
	}
	return nil
}

// page is a page in memory.
type page struct {
	id    uint64
	kind  uint16
	count int
	b     []byte // with the header
}

func parsePage(id uint64, b []byte) (page, error) {
	if len(b) < headerBytes {
		return page{}, damaged("page %d has %d bytes", id, len(b))
	}
	order := binary.NativeEndian
	if got := order.Uint64(b); got != id {
		return page{}, damaged("page %d says that it is page %d", id, got)
	}
	return page{id: id, kind: order.Uint16(b[8:]), count: int(order.Uint16(b[10:])), b: b}, nil
}

// element is one entry of a branch or a leaf.
type element struct {
	flags uint32
	child uint64 // of a branch
	key   []byte
	value []byte // of a leaf
}

// bounds returns where the key and the value of an element begin and end. Neither can
// overflow, because the file has 32 bits for each.
func (p page) bounds(i int) (key, value, end uint64) {
	order := binary.NativeEndian
	at := headerBytes + i*elementBytes
	e := p.b[at : at+elementBytes]
	if p.kind == branchPage {
		key = uint64(at) + uint64(order.Uint32(e))
		value = key + uint64(order.Uint32(e[4:]))
		return key, value, value
	}
	key = uint64(at) + uint64(order.Uint32(e[4:]))
	value = key + uint64(order.Uint32(e[8:]))
	return key, value, value + uint64(order.Uint32(e[12:]))
}

// tableBytes is how long the page is without its keys and values.
func (p page) tableBytes() int { return headerBytes + p.count*elementBytes }

// elements passes the elements of a page to f.
func (p page) elements(f func(i int, e element) error) error {
	if p.tableBytes() > len(p.b) {
		return damaged("page %d has %d elements in %d bytes", p.id, p.count, len(p.b))
	}
	order := binary.NativeEndian
	for i := range p.count {
		key, value, end := p.bounds(i)
		if key < uint64(p.tableBytes()) || end > uint64(len(p.b)) {
			return damaged("element %d of page %d is outside", i, p.id)
		}
		e := element{key: p.b[key:value], value: p.b[value:end]}
		if at := headerBytes + i*elementBytes; p.kind == branchPage {
			e.child = order.Uint64(p.b[at+8:])
		} else {
			e.flags = order.Uint32(p.b[at:])
		}
		if err := f(i, e); err != nil {
			return err
		}
	}
	return nil
}

// grow returns the buffer of a level, with its first n bytes as they were, and reads
// what the page has beyond them.
func (w *walker) grow(depth int, id uint64, have, want int) ([]byte, error) {
	b := w.buf[depth]
	if cap(b) < want {
		b = append(make([]byte, 0, want), b[:have]...)
	}
	b = b[:want]
	w.buf[depth] = b
	_, err := w.f.ReadAt(b[have:], int64(id)*w.m.pageBytes+int64(have))
	return b, err
}

// read reads a branch or a leaf. It is valid until the next page of this level is read.
func (w *walker) read(id uint64, depth int) (p page, err error) {
	if depth > maxDepth {
		return p, damaged("the tree is more than %d levels deep", maxDepth)
	}
	if err := w.take(id, 1); err != nil {
		return p, err
	}
	have := int(w.m.pageBytes)
	b, err := w.grow(depth, id, 0, have)
	if err != nil {
		return p, err
	}
	if p, err = parsePage(id, b); err != nil {
		return p, err
	}
	if p.kind != branchPage && p.kind != leafPage {
		return p, damaged("page %d is of kind %#x", id, p.kind)
	}
	more := uint64(binary.NativeEndian.Uint32(b[12:]))
	if more == 0 {
		return p, nil
	}
	if err := w.take(id+1, more); err != nil {
		return p, err
	}
	// Before memory is allocated for the whole page, its last element must need it, if only
	// to the last byte: bbolt makes pages no longer than that.
	extent := (more + 1) * uint64(w.m.pageBytes)
	table := max(p.tableBytes(), have)
	if p.count == 0 || uint64(table) > extent {
		return p, damaged("page %d has %d elements in %d bytes", id, p.count, extent)
	}
	if p.b, err = w.grow(depth, id, have, table); err != nil {
		return p, err
	}
	if _, _, end := p.bounds(p.count - 1); end <= extent-uint64(w.m.pageBytes) || end > extent {
		return p, damaged("page %d has %d bytes in %d", id, end, extent)
	}
	p.b, err = w.grow(depth, id, table, int(extent))
	return p, err
}

// records passes all records to visit, in order, and returns the sequence of their
// bucket. A value is valid during the call only.
func (w *walker) records(visit func(seq uint64, value []byte) error) (sequence uint64, err error) {
	root, err := w.read(w.m.root, 0)
	if err != nil {
		return 0, err
	}
	if root.kind != leafPage || root.count != 1 {
		return 0, damaged("page %d, where the bucket should be, is of kind %#x with %d elements", root.id, root.kind, root.count)
	}
	err = root.elements(func(_ int, e element) error {
		if e.flags != bucketFlag || string(e.key) != bucket || len(e.value) < bucketBytes {
			return damaged("the bucket %q is gone", bucket)
		}
		id := binary.NativeEndian.Uint64(e.value)
		sequence = binary.NativeEndian.Uint64(e.value[8:])
		if id != 0 {
			return w.subtree(id, 1, 0, 1<<64-1, visit)
		}
		inside, err := parsePage(0, e.value[bucketBytes:])
		if err != nil {
			return err
		}
		if inside.kind != leafPage {
			return damaged("the page in page %d is of kind %#x", root.id, inside.kind)
		}
		return w.leaf(inside, 0, 1<<64-1, visit)
	})
	return sequence, err
}

// subtree passes the records of a page, and of those below it, whose keys must be at
// least low and below high.
func (w *walker) subtree(id uint64, depth int, low, high uint64, visit func(uint64, []byte) error) error {
	p, err := w.read(id, depth)
	if err != nil {
		return err
	}
	if p.kind == leafPage {
		return w.leaf(p, low, high, visit)
	}
	if p.count == 0 {
		return damaged("page %d leads nowhere", id)
	}
	var child, from uint64
	below := func(to uint64) error {
		if from < low || from >= to || to > high {
			return damaged("page %d is out of order", id)
		}
		return w.subtree(child, depth+1, from, to, visit)
	}
	if err := p.elements(func(i int, e element) error {
		if len(e.key) != keyBytes {
			return damaged("element %d of page %d is malformed", i, id)
		}
		key := binary.BigEndian.Uint64(e.key)
		if i > 0 {
			if err := below(key); err != nil {
				return err
			}
		}
		child, from = e.child, key
		return nil
	}); err != nil {
		return err
	}
	return below(high)
}

func (w *walker) leaf(p page, low, high uint64, visit func(uint64, []byte) error) error {
	return p.elements(func(i int, e element) error {
		if e.flags != 0 || len(e.key) != keyBytes {
			return damaged("element %d of page %d is malformed", i, p.id)
		}
		seq := binary.BigEndian.Uint64(e.key)
		if seq < low || seq >= high {
			return damaged("record %d is not in its place", seq)
		}
		low = seq + 1
		return visit(seq, e.value)
	})
}

// freelist checks the list of free pages: bbolt writes to them.
func (w *walker) freelist() error {
	id := w.m.freelist
	if id == noFreelist {
		return nil // bbolt makes one of the pages that are not in use
	}
	if err := w.take(id, 1); err != nil {
		return err
	}
	b, err := w.grow(0, id, 0, int(w.m.pageBytes))
	if err != nil {
		return err
	}
	p, err := parsePage(id, b)
	if err != nil {
		return err
	}
	if p.kind != freelistPage {
		return damaged("page %d is of kind %#x, and not the list of free pages", id, p.kind)
	}
	more := uint64(binary.NativeEndian.Uint32(b[12:]))
	count, at := uint64(p.count), uint64(headerBytes)
	if count == 0xFFFF { // then the first number is the count
		count, at = binary.NativeEndian.Uint64(b[headerBytes:]), at+8
	}
	if extent := (more + 1) * uint64(w.m.pageBytes); count > w.m.numPages || at+8*count > extent {
		return damaged("%d free pages in %d bytes", count, extent)
	}
	if more > 0 {
		if err := w.take(id+1, more); err != nil {
			return err
		}
	}
	if b, err = w.grow(0, id, len(b), max(len(b), int(at+8*count))); err != nil {
		return err
	}
	for ; count > 0; count, at = count-1, at+8 {
		if err := w.take(binary.NativeEndian.Uint64(b[at:]), 1); err != nil {
			return err
		}
	}
	return nil
}
