package ringserver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// journal says which requests of a ring are in flight, to the daemon that comes after one that was
// killed: the ring's own words do not, since requests complete out of order and the client may write
// anything there. It is a mapped file of a tmpfs that no client can reach, so a store into it is there
// for the successor as soon as it has been executed.
//
// It counts the requests taken from the ring, and the completions posted to it. Each request in flight
// has a slot, which says as which one it was taken and, once that is known, as which completion it
// is posted. Two stores decide, whatever else was or was not written:
//
//   - of taken, before the daemon's marker in the ring moves: the slots that are filled count from then on;
//   - of posted, before the client's marker moves: the slots of what is posted no longer do.
//
// A slot is in flight if it was taken, pos < taken, and not posted: postpos is none, or >= posted. All
// methods are called with ring.mu held, and may be called on nil, the journal of a ring that ends with
// its daemon.
type journal struct {
	m    *shm.Mapping
	path string
	room keeping
	uid  uint32

	free          []int32 // slots
	taken, posted uint64  // as stored
	posting       uint64  // completions that were written since, and are not stored in posted
}

// The head of a journal, and its slots.
const (
	journalFormat = 0x6b763366_00000001

	journalOffFormat  = 0
	journalOffRingLen = 8
	journalOffSlots   = 16
	journalOffBegan   = 24  // taken, at first
	journalOffEnded   = 32  // posted, at first
	journalOffGroup   = 40  // see noteGroup
	journalOffBroken  = 48  // not 0: the client broke the protocol
	journalOffTaken   = 64  // on cache lines of their own
	journalOffPosted  = 128 //
	journalHead       = 4096

	slotBytes       = 128
	slotOffPos      = 0 // 1 + which one it is of those taken; 0: the slot was never used
	slotOffPostpos  = 8 // 1 + which one of those posted; 0: none yet
	slotOffIndex    = 16
	slotOffUserdata = 24
	slotOffArgs     = 32

	slotBadIndex = 1 << 32 // in the word of the index
)

// keeping bounds what the state of a daemon takes, see restart.Dir.Take. The journal of a ring of 1024 entries takes 132 KiB.
type keeping interface {
	Take(uid uint32, n int64) bool
	Return(uid uint32, n int64)
}

// journalSlots returns how many requests of a ring can be in flight.
func journalSlots(layout wire.Layout) int { return min(layout.Entries(), mostInflight) }

func journalSize(layout wire.Layout) int64 {
	return journalHead + slotBytes*int64(journalSlots(layout))
}

// newJournal makes the journal of a ring whose daemon's markers are sqeTail and cqeHead. The memory is
// allocated now: a store must not fault later.
func newJournal(path string, layout wire.Layout, sqeTail, cqeHead int32, in keeping, uid uint32) (*journal, error) {
	size := journalSize(layout)
	if !in.Take(uid, size) {
		return nil, errNoRoom
	}
	m, err := mapJournal(path, size, true)
	if err != nil {
		in.Return(uid, size)
		return nil, err
	}
	j := &journal{m: m, path: path, room: in, uid: uid, taken: uint64(sqeTail), posted: uint64(cqeHead), posting: uint64(cqeHead)}
	for i := journalSlots(layout) - 1; i >= 0; i-- {
		j.free = append(j.free, int32(i))
	}
	m.StoreUint64(journalOffRingLen, uint64(layout.RingLen))
	m.StoreUint64(journalOffSlots, uint64(journalSlots(layout)))
	m.StoreUint64(journalOffBegan, j.taken)
	m.StoreUint64(journalOffEnded, j.posted)
	m.StoreUint64(journalOffTaken, j.taken)
	m.StoreUint64(journalOffPosted, j.posted)
	m.StoreUint64(journalOffFormat, journalFormat)
	return j, nil
}

func mapJournal(path string, size int64, create bool) (*shm.Mapping, error) {
	flags := os.O_RDWR | syscall.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping has its own
	if create {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	} else if at, bad := f.Stat(); bad != nil || at.Size() != size || !at.Mode().IsRegular() {
		err = errors.Join(bad, fmt.Errorf("it has not the size of its ring's journal, %d bytes: %w", size, restart.ErrDamaged))
	} else { // punched out, it would fault when /run is full
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	var m *shm.Mapping
	if err == nil {
		m, err = shm.Map(int(f.Fd()), size)
	}
	if err != nil && create {
		err = errors.Join(err, os.Remove(path))
	}
	return m, err
}

// unfinished is a request that was in flight when the daemon ended.
type unfinished struct {
	slot     int32
	pos      uint64
	index    int32
	badIndex bool
	userdata uint64
	args     wire.Args
}

// openJournal opens the journal that a predecessor has left of a ring, and returns what was in flight,
// in the order in which it was taken. An error that is restart.ErrDamaged says that it cannot be believed.
func openJournal(path string, layout wire.Layout, in keeping, uid uint32) (*journal, []unfinished, error) {
	size := journalSize(layout)
	if !in.Take(uid, size) {
		return nil, nil, errNoRoom
	}
	m, err := mapJournal(path, size, false)
	if err != nil {
		in.Return(uid, size)
		return nil, nil, err
	}
	j := &journal{m: m, path: path, room: in, uid: uid}
	all, err := j.recover(layout)
	if err != nil {
		j.close()
		return nil, nil, err
	}
	return j, all, nil
}

// recover reads the journal.
func (j *journal) recover(layout wire.Layout) ([]unfinished, error) {
	m, slots := j.m, journalSlots(layout)
	if m.LoadUint64(journalOffFormat) != journalFormat || m.LoadUint64(journalOffRingLen) != uint64(layout.RingLen) || m.LoadUint64(journalOffSlots) != uint64(slots) {
		return nil, fmt.Errorf("it is not the journal of this ring: %w", restart.ErrDamaged)
	}
	j.taken, j.posted = m.LoadUint64(journalOffTaken), m.LoadUint64(journalOffPosted)
	j.posting = j.posted
	began, ended := m.LoadUint64(journalOffBegan), m.LoadUint64(journalOffEnded)
	var all []unfinished
	var untaken []int32
	places := map[uint64]bool{}
	for i := range int32(slots) {
		at := slotAt(i)
		pos, postpos := m.LoadUint64(at+slotOffPos), m.LoadUint64(at+slotOffPostpos)
		if pos == 0 || pos > j.taken || postpos != 0 && postpos <= j.posted {
			if pos > j.taken {
				untaken = append(untaken, i)
			}
			j.free = append(j.free, i)
			continue
		}
		var args [wire.ArgsBytes]byte
		m.CopyOut(args[:], at+slotOffArgs)
		index := m.LoadUint64(at + slotOffIndex)
		q := unfinished{slot: i, pos: pos, index: int32(uint32(index)), badIndex: index&slotBadIndex != 0, userdata: m.LoadUint64(at + slotOffUserdata)}
		if !q.badIndex {
			q.args.Decode(&args)
		}
		if q.badIndex == layout.Valid(q.index) || index>>33 != 0 || places[pos] {
			return nil, fmt.Errorf("slot %d: %w", i, restart.ErrDamaged)
		}
		places[pos] = true
		all = append(all, q)
	}
	slices.Reverse(j.free)
	// Each request that was taken is in flight or was posted.
	if j.taken-began-(j.posted-ended) != uint64(len(all)) && m.LoadUint64(journalOffBroken) == 0 {
		return nil, fmt.Errorf("of %d requests taken, %d were posted, and %d are in flight: %w", j.taken-began, j.posted-ended, len(all), restart.ErrDamaged)
	}
	for _, i := range untaken { // the request is found in the ring again, and gets another slot: this one must not count with it
		m.StoreUint64(slotAt(i)+slotOffPos, 0)
	}
	for _, q := range all { // they are posted anew
		m.StoreUint64(slotAt(q.slot)+slotOffPostpos, 0)
	}
	slices.SortFunc(all, func(a, b unfinished) int {
		if a.pos < b.pos {
			return -1
		}
		return 1
	})
	return all, nil
}

func slotAt(i int32) int64 { return journalHead + slotBytes*int64(i) }

// markers returns the daemon's markers of a ring.
func (j *journal) markers(layout wire.Layout) (sqeTail, cqeHead int32) {
	n := uint64(layout.RingLen)
	return int32(j.taken % n), int32(j.posted % n)
}

// admit fills a slot with a request that is the nth to be taken since take was called last.
func (j *journal) admit(q *request, n int, args *[wire.ArgsBytes]byte) {
	if j == nil {
		return
	}
	last := len(j.free) - 1
	q.slot = j.free[last]
	j.free = j.free[:last]
	at := slotAt(q.slot)
	index := uint64(uint32(q.index))
	if q.badIndex {
		index |= slotBadIndex
	}
	// First the position, which is not taken yet: so the slot counts at no moment.
	j.m.StoreUint64(at+slotOffPos, j.taken+uint64(n)+1)
	j.m.PutUint64(at+slotOffPostpos, 0)
	j.m.PutUint64(at+slotOffIndex, index)
	j.m.PutUint64(at+slotOffUserdata, q.userdata)
	j.m.CopyIn(at+slotOffArgs, args[:])
}

// take has n requests count as taken.
func (j *journal) take(n int) {
	if j == nil {
		return
	}
	invariants.Reach("A1")
	j.taken += uint64(n)
	j.m.StoreUint64(journalOffTaken, j.taken)
	invariants.Reach("A2")
}

// complete notes that q's completion is in the next slot of the ring.
func (j *journal) complete(q *request) {
	if j == nil {
		return
	}
	j.posting++
	j.m.PutUint64(slotAt(q.slot)+slotOffPostpos, j.posting)
	j.free = append(j.free, q.slot) // nobody fills it before publish: ring.mu is held
	invariants.Reach("C1")
}

// publish has what is complete count as posted.
func (j *journal) publish() {
	if j == nil {
		return
	}
	j.posted = j.posting
	j.m.StoreUint64(journalOffPosted, j.posted)
	invariants.Reach("C2")
}

// noteGroup notes that the n requests that are waiting next were found to be whole groups, see
// ring.admitWhole.
func (j *journal) noteGroup(n int32) {
	if j != nil {
		j.m.StoreUint64(journalOffGroup, j.taken+uint64(n))
	}
}

// group returns how many of those are not taken.
func (j *journal) group(most int) int32 {
	if end := j.m.LoadUint64(journalOffGroup); end > j.taken && end-j.taken <= uint64(most) {
		return int32(end - j.taken)
	}
	return 0
}

// breaks notes that the ring is not served any more.
func (j *journal) breaks() {
	if j != nil {
		j.m.StoreUint64(journalOffBroken, 1)
	}
}

func (j *journal) broken() bool { return j.m.LoadUint64(journalOffBroken) != 0 }

// close ends the mapping, and leaves the file.
func (j *journal) close() {
	if j != nil {
		size := j.m.Len()
		j.m.Unmap()
		j.room.Return(j.uid, size)
	}
}
