package tree

import (
	"encoding/binary"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
)

// The records of the journal: a byte that says which it is, and numbers and names, as uvarints and with
// their lengths. A record of the log has any number of them.
const (
	recordNode   = 1 + iota // all of a node but its further places
	recordRefs              // the kernel's references to it
	recordPlace             // its place
	recordLink              // one more place
	recordUnlink            // a place that it has no more
	recordGone              // it has no name, and its inode's number may be another's
	recordAside             // see node.aside
	recordCharge            // see Tree.Charge
	recordLock              // of a directory
	recordUnlock
	recordMoving // it is about to be moved from one place to another
	recordUnkept // it is not to be known any more
)

const (
	flagGone = 1 << iota
	flagAside
	flagCharged
)

// mostName bounds a name; file systems have 255 bytes.
const mostName = 4096

func appendName(b []byte, name string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(name))), name...)
}

func appendNode(b []byte, n *node, gone bool) []byte {
	flags := uint64(0)
	if gone {
		flags |= flagGone
	}
	if n.aside.Load() {
		flags |= flagAside
	}
	if n.charged {
		flags |= flagCharged
	}
	b = append(b, recordNode)
	b = binary.AppendUvarint(b, n.id)
	b = binary.AppendUvarint(b, n.parent.id)
	b = binary.AppendUvarint(b, uint64(n.kind))
	b = appendIdentity(b, n.key)
	b = binary.AppendUvarint(b, n.ino)
	b = binary.AppendUvarint(b, n.lookups)
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendUvarint(b, uint64(n.uid))
	return appendName(b, n.name)
}

func appendIdentity(b []byte, k identity) []byte {
	b = binary.AppendUvarint(b, k.dev)
	b = binary.AppendUvarint(b, k.ino)
	return binary.AppendVarint(b, k.birth)
}

func appendRefs(b []byte, id, lookups uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(append(b, recordRefs), id), lookups)
}

func appendPlace(b []byte, kind byte, id uint64, p place) []byte {
	b = binary.AppendUvarint(append(b, kind), id)
	return appendName(binary.AppendUvarint(b, p.parent.id), p.name)
}

func appendMoving(b []byte, id uint64, from, to place) []byte {
	b = binary.AppendUvarint(append(b, recordMoving), id)
	b = appendName(binary.AppendUvarint(b, from.parent.id), from.name)
	return appendName(binary.AppendUvarint(b, to.parent.id), to.name)
}

// appendMark appends a record that has a node only.
func appendMark(b []byte, kind byte, id uint64) []byte {
	return binary.AppendUvarint(append(b, kind), id)
}

func appendCharge(b []byte, id uint64, uid uint32) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(append(b, recordCharge), id), uint64(uid))
}

func appendLock(b []byte, kind byte, k identity, uid uint32) []byte {
	return binary.AppendUvarint(appendIdentity(append(b, kind), k), uint64(uid))
}

// recordReader takes values off the beginning of a record. After the first error all are zero.
type recordReader struct {
	b   []byte
	err error
}

func (r *recordReader) fail() {
	if r.err == nil {
		r.err = fmt.Errorf("%w: no record of a node", restart.ErrDamaged)
	}
	r.b = nil
}

func (r *recordReader) kind() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	k := r.b[0]
	r.b = r.b[1:]
	return k
}

func (r *recordReader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// upTo returns a number that must not be larger than most.
func (r *recordReader) upTo(most uint64) uint64 {
	v := r.number()
	if v > most {
		r.fail()
		return 0
	}
	return v
}

func (r *recordReader) identity() identity {
	k := identity{dev: r.number(), ino: r.number()}
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return identity{}
	}
	r.b = r.b[n:]
	k.birth = v
	return k
}

func (r *recordReader) name() string {
	n := r.upTo(mostName)
	if n > uint64(len(r.b)) {
		r.fail()
		return ""
	}
	name := string(r.b[:n])
	r.b = r.b[n:]
	return name
}

func (r *recordReader) place() recalledPlace { return recalledPlace{r.number(), r.name()} }

const mostUint32 = 1<<32 - 1

// record takes one record off.
func (r *recordReader) record() (v recordValue) {
	switch v.kind = r.kind(); v.kind {
	case recordNode:
		v.id, v.at.parent, v.mode = r.number(), r.number(), uint32(r.upTo(mostUint32))
		v.key, v.ino, v.lookups = r.identity(), r.number(), r.number()
		v.flags, v.uid, v.at.name = r.number(), uint32(r.upTo(mostUint32)), r.name()
	case recordRefs:
		v.id, v.lookups = r.number(), r.number()
	case recordPlace, recordLink, recordUnlink:
		v.id, v.at = r.number(), r.place()
	case recordGone, recordAside, recordUnkept:
		v.id = r.number()
	case recordCharge:
		v.id, v.uid = r.number(), uint32(r.upTo(mostUint32))
	case recordLock, recordUnlock:
		v.key, v.uid = r.identity(), uint32(r.upTo(mostUint32))
	case recordMoving:
		v.id, v.at, v.to = r.number(), r.place(), r.place()
	default:
		r.fail()
	}
	return v
}

// recordValue is a record of any kind.
type recordValue struct {
	kind         byte
	id           uint64
	at, to       recalledPlace
	mode         uint32
	key          identity
	ino, lookups uint64
	flags        uint64
	uid          uint32
}

// wholeRecords returns how many bytes of b are whole records, at least one and as many as fit in most.
func wholeRecords(b []byte, most int) int {
	r := recordReader{b: b}
	end := 0
	for len(r.b) > 0 {
		r.record()
		if at := len(b) - len(r.b); end == 0 || at <= most {
			end = at
		} else {
			break
		}
	}
	return end
}
