package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// A bbolt file begins with two meta pages, which its transactions write in turn. The
// newer one says where everything else is. Where one is invalid, bbolt uses the other
// without a word, although the last commit may then be missing; and it cannot tell that
// a meta page is an old copy of itself. So the journal looks at them itself, and marks
// the older one after each commit with the number of the transaction.

const (
	metaMagic    = 0xED0CDAED
	metaVersion  = 2
	metaAt       = 16 // in its page, behind the header
	metaBytes    = 64
	minPageBytes = 1 << 10
	maxPageBytes = 16 << 20
	noFreelist   = 1<<64 - 1
	mostTxid     = 1 << 62 // no file gets there, and behind the largest number would come 0

	markMagic = "kv3fs ok"
	markBytes = 24
)

// meta is the content of a meta page, as far as it matters here.
type meta struct {
	pageBytes int64
	root      uint64 // the page that has the bucket's name
	freelist  uint64
	numPages  uint64 // in use or free; pages beyond have never been used
	txid      uint64

	misplaced bool // the page is not where a transaction with this number puts it
}

// damage is an error that the content of a file causes.
type damage string

func (d damage) Error() string { return string(d) }

func damaged(format string, args ...any) error { return damage(fmt.Sprintf(format, args...)) }

// readMetas returns what bbolt will use as the newest meta page, and why a newer one may
// be missing, if so.
func readMetas(f *os.File) (newest meta, missing string, err error) {
	pageBytes, err := findPageBytes(f)
	if err != nil {
		return meta{}, "", err
	}
	var metas [2]*meta
	acknowledged := uint64(0)
	for i := range metas {
		page := make([]byte, pageBytes)
		if _, err := f.ReadAt(page, int64(i)*pageBytes); err != nil {
			return meta{}, "", err
		}
		if m, ok := parseMeta(page, uint64(i)); ok {
			metas[i] = &m
		}
		acknowledged = max(acknowledged, parseMark(page[pageBytes/2:]))
	}
	a, b := metas[0], metas[1]
	switch {
	case a == nil && b == nil:
		return meta{}, "", damage("both meta pages are invalid")
	case a == nil:
		newest, missing = *b, "meta page 0 is invalid"
	case b == nil:
		newest, missing = *a, "meta page 1 is invalid"
	default:
		if b.txid > a.txid {
			a, b = b, a
		}
		newest = *a
		if a.misplaced || b.misplaced || a.txid != b.txid+1 {
			missing = fmt.Sprintf("the meta pages do not fit together: transactions %d and %d", a.txid, b.txid)
		}
	}
	if acknowledged > newest.txid {
		missing = fmt.Sprintf("transaction %d was acknowledged, and the newest is %d", acknowledged, newest.txid)
	}
	if newest.txid > mostTxid {
		return meta{}, "", damaged("transaction %d", newest.txid)
	}
	if newest.pageBytes != pageBytes {
		return meta{}, "", damaged("pages of %d and of %d bytes", newest.pageBytes, pageBytes)
	}
	return newest, missing, nil
}

// findPageBytes finds the size of a page as bbolt does: the first meta page has it, else
// the second one, whose place depends on it.
func findPageBytes(f *os.File) (int64, error) {
	b := make([]byte, metaAt+metaBytes)
	for at := int64(0); at <= maxPageBytes; at = max(minPageBytes, 2*at) {
		if _, err := f.ReadAt(b, at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
		if m, ok := parseMeta(b, 0); ok {
			if m.pageBytes < minPageBytes || m.pageBytes > maxPageBytes || m.pageBytes&(m.pageBytes-1) != 0 {
				return 0, damaged("a page of %d bytes", m.pageBytes)
			}
			return m.pageBytes, nil
		}
	}
	return 0, damage("both meta pages are invalid")
}

// parseMeta reads a meta page; ok is whether bbolt takes it for valid.
func parseMeta(page []byte, id uint64) (m meta, ok bool) {
	order := binary.NativeEndian
	b := page[metaAt : metaAt+metaBytes]
	m = meta{
		pageBytes: int64(order.Uint32(b[8:])),
		root:      order.Uint64(b[16:]),
		freelist:  order.Uint64(b[32:]),
		numPages:  order.Uint64(b[40:]),
		txid:      order.Uint64(b[48:]),
	}
	m.misplaced = order.Uint64(page) != id || order.Uint16(page[8:]) != metaPage || m.txid%2 != id
	valid := order.Uint32(b) == metaMagic && order.Uint32(b[4:]) == metaVersion
	return m, valid && order.Uint64(b[56:]) == hash64(b[:56])
}

// writeMark notes in the older meta page that a transaction was acknowledged. Nobody
// waits until that is on the disk: the note only ever says less than is true.
func writeMark(f *os.File, pageBytes int64, txid uint64) error {
	b := binary.NativeEndian.AppendUint64([]byte(markMagic), txid)
	b = binary.NativeEndian.AppendUint64(b, hash64(b))
	_, err := f.WriteAt(b, int64((txid+1)%2)*pageBytes+pageBytes/2)
	return err
}

// parseMark returns the transaction that a mark names; 0 if there is none.
func parseMark(b []byte) (txid uint64) {
	b = b[:markBytes]
	if string(b[:8]) != markMagic || binary.NativeEndian.Uint64(b[16:]) != hash64(b[:16]) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[8:])
}

func hash64(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}
