package tree

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
)

// A successor of this daemon that takes over its mount, or only its rings, must know the nodes that the
// kernel and the rings know. With Options.State the tree writes what happens to nodes to a log, and reads
// it again when it is opened. Without, all of this does nothing.
//
// Records are made under Tree.mu, in the order of what happened, and written by Commit, which whoever
// tells somebody of a node calls before. They say how something is from now on, not how it has changed:
// applied twice, they mean the same. So a record may be written after a compaction that knew of it.
const (
	journalFile    = "nodes"
	generationFile = "generation"
	journalVersion = 1

	// generationShift is above the node numbers of one daemon. They are never used twice while the state
	// lives: each daemon has a generation of its own, whatever may be lost of the log.
	generationShift = 36
	mostGenerations = 1 << 20

	// mostPending is when records are written that nobody waits for.
	mostPending = 64 << 10
	// leastCompacted is the size from which the log is worth compacting, when it has trebled.
	leastCompacted = 4 << 20
)

// journal is the log of a tree's nodes. A nil one keeps nothing.
type journal struct {
	log   *restart.Log
	state *restart.Dir // has the room for it
	lost  func(error)  // called once if the log cannot be written: a successor will not know the nodes

	pending []byte // records that are not written yet; guarded by Tree.mu
	// made counts the records, written those of them that are.
	made, written atomic.Uint64

	writing sync.Mutex // keeps their order
	spare   []byte     // a buffer for pending
	failed  bool
	compact int64         // the size at which the log is compacted
	grown   chan struct{} // capacity 1
}

// beginJournal reads what a predecessor has left, and goes on from there. Where that is damaged, the tree
// knows nothing, as Recalled says.
func (t *Tree) beginJournal(state *restart.Dir, lost func(error)) {
	if lost == nil {
		lost = func(error) {}
	}
	generation, err := nextGeneration(state)
	t.generation, t.recalledErr = generation, err
	t.nextID.Store(max(RootID, generation<<generationShift))
	r := newRecalled()
	log, err := state.OpenLog(journalFile, journalVersion, r.read)
	if log == nil {
		t.recalledErr = errors.Join(t.recalledErr, err)
		lost(err)
		return
	}
	if err == nil && generation == 0 && log.Bytes() > 0 {
		err = fmt.Errorf("%w: the daemons that wrote it are not counted", restart.ErrDamaged)
	}
	if t.recalledErr = errors.Join(t.recalledErr, err); t.recalledErr != nil {
		r = newRecalled()
	}
	t.journal = &journal{log: log, state: state, lost: lost, compact: max(state.Small(leastCompacted), 3*log.Bytes()), grown: make(chan struct{}, 1)}
	t.recalled = t.recall(r)
	if t.recalledErr != nil {
		if err := t.compactNow(); err != nil {
			t.journal.fail(err)
		}
	}
}

// Discard removes what a predecessor has left of nodes that nobody refers to any more, because its mount has ended. Their numbers are not
// used again.
func Discard(state *restart.Dir) error { return state.Remove(journalFile) }

// CheckState returns an error if a tree would not go on with what another one keeps in state. It changes nothing.
func CheckState(state *restart.Dir) error {
	last, err := readGeneration(state)
	if err == nil && last+1 >= mostGenerations {
		err = fmt.Errorf("%d: no further one can", last)
	}
	if err != nil {
		return fmt.Errorf("which daemons have used it: %w", err)
	}
	if err := state.ReadLog(journalFile, journalVersion, newRecalled().read); err != nil {
		return fmt.Errorf("what the kernel knows of files: %w", err)
	}
	return nil
}

// nextGeneration counts the daemons that have used the state.
func nextGeneration(state *restart.Dir) (next uint64, err error) {
	switch last, bad := readGeneration(state); {
	case errors.Is(bad, fs.ErrNotExist):
	case bad != nil:
		err = bad
	case last >= mostGenerations:
		err = fmt.Errorf("%s: %w", generationFile, restart.ErrDamaged)
	default:
		next = last + 1
	}
	return next, errors.Join(err, state.Write(generationFile, journalVersion, binary.LittleEndian.AppendUint64(nil, next)))
}

func readGeneration(state *restart.Dir) (last uint64, err error) {
	version, b, err := state.Read(generationFile)
	switch {
	case err != nil:
		return 0, err
	case version != journalVersion:
		return 0, fmt.Errorf("%s has version %d, where this version knows %d: %w", generationFile, version, journalVersion, restart.ErrDamaged)
	case len(b) != 8:
		return 0, fmt.Errorf("%s: %w", generationFile, restart.ErrDamaged)
	}
	return binary.LittleEndian.Uint64(b), nil
}

// Generation counts the daemons before this one that have used Options.State.
func (t *Tree) Generation() uint64 { return t.generation }

// Recalled returns how many nodes of a predecessor the tree knows. The error says that what it left
// is damaged: then none.
func (t *Tree) Recalled() (nodes int, err error) { return t.recalled, t.recalledErr }

// Commit writes what has happened to nodes for a successor. It is called before anybody is told of it.
func (t *Tree) Commit() {
	if j := t.journal; j != nil && j.written.Load() != j.made.Load() {
		t.commit(j)
	}
}

func (t *Tree) commit(j *journal) {
	j.writing.Lock()
	defer j.writing.Unlock()
	t.mu.Lock()
	records := j.pending
	j.pending = j.spare[:0]
	made := j.made.Load()
	t.mu.Unlock()
	j.spare = records
	defer j.written.Store(made)
	if len(records) == 0 || j.failed {
		return
	}
	if err := j.log.Append(records); err != nil {
		j.fail(err)
		return
	}
	if j.log.Bytes() > j.compact {
		select {
		case j.grown <- struct{}{}:
		default:
		}
	}
}

// fail gives the log up. The caller holds j.writing.
func (j *journal) fail(err error) {
	if !j.failed {
		j.failed = true
		j.lost(err)
	}
}

// commitMany is Commit for what nobody waits for.
func (t *Tree) commitMany() {
	if j := t.journal; j != nil {
		t.mu.RLock()
		many := len(j.pending) > mostPending
		t.mu.RUnlock()
		if many {
			t.commit(j)
		}
	}
}

// compactJournal keeps the log small, until ctx ends.
func (t *Tree) compactJournal(ctx context.Context) {
	j := t.journal
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.grown:
		}
		err := t.compactNow()
		j.writing.Lock()
		if err != nil {
			j.fail(err)
		}
		j.compact = max(j.state.Small(leastCompacted), 3*j.log.Bytes())
		j.writing.Unlock()
	}
}

// compactNow replaces the log by one record for each node. Nodes change meanwhile: what they become is
// pending then, and written after it.
func (t *Tree) compactNow() error {
	return t.journal.log.Compact(func(add func([]byte) error) error {
		var buf []byte
		for i := range t.byID.shards {
			buf = t.snapshot(buf[:0], &t.byID.shards[i])
			for len(buf) > 0 {
				part := wholeRecords(buf, mostPending)
				if err := add(buf[:part]); err != nil {
					return err
				}
				buf = buf[part:]
			}
		}
		return add(t.snapshotLocks(nil))
	})
}

// snapshot appends records that say all of the nodes of a shard.
func (t *Tree) snapshot(b []byte, s *indexShard[uint64, *node]) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.m {
		if n == t.root || n.unkept {
			continue
		}
		b = t.appendAll(b, n)
	}
	return b
}

// appendAll appends records that say all of a node.
func (t *Tree) appendAll(b []byte, n *node) []byte {
	b = appendNode(b, n, !t.identified(n))
	for p := range t.links[n] {
		b = appendPlace(b, recordLink, n.id, p)
	}
	return b
}

// identified reports whether an inode of n's identity is n.
func (t *Tree) identified(n *node) bool {
	is, ok := t.byIdentity.get(n.key)
	return ok && is == n
}

func (t *Tree) snapshotLocks(b []byte) []byte {
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	for k, uid := range t.locks {
		b = appendLock(b, recordLock, k, uid)
	}
	return b
}

// note has a record appended. The caller holds Tree.mu.
func (t *Tree) noteLocked(record func(b []byte) []byte) {
	if j := t.journal; j != nil {
		j.pending = record(j.pending)
		j.made.Add(1)
	}
}

// note is noteLocked for callers that do not hold Tree.mu.
func (t *Tree) note(record func(b []byte) []byte) {
	if t.journal != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.noteLocked(record)
	}
}

// noteNewLocked notes all of n.
func (t *Tree) noteNewLocked(n *node) {
	if j := t.journal; j != nil {
		j.pending = appendNode(j.pending, n, false)
		j.made.Add(1)
	}
}

// noteAllLocked notes all of a node that a successor was not to know until now.
func (t *Tree) noteAllLocked(n *node) {
	t.noteLocked(func(b []byte) []byte { return t.appendAll(b, n) })
}

// noteMarkLocked appends a record that has a node only.
func (t *Tree) noteMarkLocked(kind byte, n *node) {
	if j := t.journal; j != nil && !n.unkept {
		j.pending = appendMark(j.pending, kind, n.id)
		j.made.Add(1)
	}
}

// noteMoving notes that n, if it is known, is about to be moved.
func (t *Tree) noteMoving(n *node, from, to place) {
	if n != nil && from.parent != nil && to.parent != nil {
		t.note(func(b []byte) []byte { return appendMoving(b, n.id, from, to) })
	}
}

// noteRefsLocked notes how many references the kernel has to n.
func (t *Tree) noteRefsLocked(n *node) {
	if j := t.journal; j != nil && n != t.root && !n.unkept {
		j.pending = appendRefs(j.pending, n.id, n.lookups)
		j.made.Add(1)
	}
}

// notePlaceLocked notes a place of n: that it has become the main one, one more, or none.
func (t *Tree) notePlaceLocked(kind byte, n *node, p place) {
	if j := t.journal; j != nil && n != t.root && !n.unkept {
		j.pending = appendPlace(j.pending, kind, n.id, p)
		j.made.Add(1)
	}
}

// closeJournal writes the rest, for a successor.
func (t *Tree) closeJournal() error {
	if t.journal == nil {
		return nil
	}
	t.Commit()
	t.journal.writing.Lock()
	defer t.journal.writing.Unlock()
	t.journal.failed = true // a forget that comes late
	return t.journal.log.Close()
}
