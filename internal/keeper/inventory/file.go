package inventory

import "sync"

// Key names a file or directory by the device of its file system, which is the major
// number shifted by 32 bits plus the minor one, and by its inode number.
type Key = struct{ Dev, Ino uint64 }

// Victim is a file as it was when it was chosen to go.
type Victim = struct {
	Key                Key
	SizeBytes, MtimeNs int64
}

// Kind is how a file may be treated, as its name tells.
type Kind uint8

// Kinds of files.
const (
	Entry     Kind = iota // it may go once its turn has come
	Temporary             // unfinished: it goes first, once nobody can be writing it
	Unknown               // it may go if the operator says so
	Kept                  // it never goes
	Side                  // as an Entry, but a further file of one: uses of the entry are those of the other file
	kindMask  = Kind(7)
)

// flags of a file besides its Kind, and from restShift on the rest of its blocks.
const (
	unsized  = 1 << (iota + 3) // an event named the file, and nobody has yet said what it takes
	nameless                   // it has no name; the record goes with the last use
	several                    // its names are in shard.names
	inUse                      // it is in shard.uses
	fresh                      // it is new, and the use in which it is written has not ended
	followed                   // it is in shard.followed
	seenOdd                    // the last scan that saw it had an odd number; or the last one before it was made
	unplaced                   // charged to the root for now: its directory has no record yet
)

// file is the record of one file. There may be millions, hence the packing.
type file struct {
	place   uint32 // what it is charged to, see places
	blocks  uint32 // of 512 bytes, the low 32 bits
	lastUse uint32 // on the inventory's clock
	flags   uint16
	uses    uint8 // up to mostUses
	tag     uint8 // of the hash of its name, or of one of them
}

const (
	mostUses   = 255
	blockBytes = 512
	restShift  = 11
	mostBlocks = 1<<(32+16-restShift) - 1 // 64 TiB
)

func (f *file) bytes() int64 { return (int64(f.flags>>restShift)<<32 | int64(f.blocks)) * blockBytes }

func (f *file) setBlocks(n int64) {
	n = min(max(n, 0), mostBlocks)
	f.blocks, f.flags = uint32(n), f.flags&(1<<restShift-1)|uint16(n>>32)<<restShift
}

func (f *file) is(flag uint16) bool { return f.flags&flag != 0 }

func (f *file) set(flag uint16, on bool) {
	f.flags &^= flag
	if on {
		f.flags |= flag
	}
}

func (f *file) kind() Kind { return Kind(f.flags) & kindMask }

func (f *file) setKind(k Kind) { f.flags = f.flags&^uint16(kindMask) | uint16(k&kindMask) }

// use is what is going on with a file: how often it is open, and what is set aside for
// writes that have not ended.
type use struct {
	opens    int
	reserved int64
}

// name is one of several names of a file: where it is, and a hash of what it is.
type name struct {
	dir uint32
	tag uint8
}

// shards is how many independently locked parts the records have. A power of two.
const shards = 64

type shard struct {
	mu       sync.Mutex
	files    map[uint64]file // by inode number
	uses     map[uint64]*use
	names    map[uint64][]name // of files with several names
	followed map[uint64]uint64 // keys of files for Uses
	sweepAt  int               // followed is swept once it has so many
	stray    map[uint64]int64  // claims for inodes that have no record, in the root alone

	// changes counts what may make wrong what a scan has just read of a file: names that
	// were taken from it, and uses that ended.
	changes uint64
	heat    []Heat // sorted by inode, until the first scan has ended
}

// table holds the files of one device.
type table struct {
	dev    uint64
	shards [shards]shard
}

func newTable(dev uint64) *table {
	t := &table{dev: dev}
	for i := range t.shards {
		t.shards[i].files = make(map[uint64]file)
		t.shards[i].uses = make(map[uint64]*use)
		t.shards[i].followed = make(map[uint64]uint64)
		t.shards[i].names = make(map[uint64][]name)
		t.shards[i].stray = make(map[uint64]int64)
	}
	return t
}

// of returns the shard of an inode. Neighbours in number are often made together, so
// the low bits spread them best.
func (t *table) of(ino uint64) *shard { return &t.shards[shardOf(ino)] }

func shardOf(ino uint64) int { return int((ino ^ ino>>32) % shards) }
