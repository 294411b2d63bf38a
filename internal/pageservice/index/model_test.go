package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// model simulates what surrounds an index: a clock, page files with the bytes that were
// really written, writers that write late, and readers that read as long as their lease
// allows. Whatever the index does, no reader may see the bytes of another key.
type model struct {
	b     *Index
	o     Options
	disk  journal.Options
	dir   string // of all files
	life  int    // the number of crashes
	clock time.Time
	fault fault
	ctx   context.Context // of the operation
	leave func()
	left  chan struct{} // closed when the operation has returned
	gone  bool          // the caller of the last operation was gone

	files   map[int]map[int64]string // rank, page: the key whose bytes are there
	writers []*writer
	readers []reader
	before  map[string]pageservice.Entry // the keys when the operation began
	world   int                          // the number of needed ranks at that time
}

// writer is a client that was told to write a page.
type writer struct {
	rank    int
	key     string
	page    int64
	begin   time.Time
	until   time.Time // it may write until then
	present bool      // the key was there: it writes the same again
	wrote   bool
	over    bool // it has confirmed or released
	void    bool // its reservation may have ended early: released, cleared, dropped
	former  bool // the page may have been reserved anew since
}

// reader is a client that was told where a key is.
type reader struct {
	rank  int
	key   string
	page  int64
	until time.Time
}

// fault is what happens at the next write to the disk.
type fault int

const (
	noFault     fault = iota
	diskFull          // it fails, the index goes on
	crashBefore       // the process dies before it
	crashAfter        // the process dies after it, before the outcome is known
	crashed
	callerGone // the caller goes away while it is under way
)

var ctx = context.Background()

var modelSpace = pageservice.Space{Namespace: "m", Set: "vllm"}

// fewBytes is a bound on memory that the model reaches, and tooFew one that is too small
// for any key.
const (
	fewBytes = 2*(spaceBytes+2*rankBytes+slabLen*entryBytes) + 1<<9
	tooFew   = spaceBytes + 3*rankBytes
)

func newModel(dir string, slackBytes int64, searchBound, world int, memoryBytes int64, free float64) (*model, error) {
	m := &model{dir: dir, clock: time.Unix(1_800_000_000, 0), files: map[int]map[int64]string{0: {}, 1: {}}}
	m.disk = journal.Options{SlackBytes: slackBytes, Commit: m.commit}
	m.o = Options{searchBound: searchBound, Now: func() time.Time { return m.clock }}
	m.o.World, m.o.MemoryBytes, m.o.Free = world, memoryBytes, free
	m.o.Options = m.o.Options.WithDefaults()
	if err := m.open(); err != nil {
		return nil, err
	}
	for rank := range 2 {
		if _, err := m.b.Initialize(ctx, modelSpace, rank, pageservice.RankOptions{NumPages: 4}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *model) home() string { return filepath.Join(m.dir, fmt.Sprint(m.life)) }

func (m *model) open() error {
	b, err := openWith(m.home(), m.disk, m.o)
	if err == nil {
		m.b = b
	}
	return err
}

func (m *model) reopen(t *rapid.T) {
	if err := m.open(); err != nil {
		t.Fatalf("reopen: %v", err)
	}
}

// commit simulates the disk.
func (m *model) commit(commit func() error) error {
	f := m.fault
	switch f {
	case noFault:
		return commit()
	case callerGone:
		m.leave()
		<-m.left // so that the caller has returned before the disk is done
		return commit()
	case diskFull:
		m.fault = noFault
		return syscall.ENOSPC
	case crashed:
		return syscall.EIO
	}
	m.fault = crashed
	if f == crashAfter {
		if err := commit(); err != nil {
			return err
		}
	}
	if err := m.copyFile(); err != nil {
		return err
	}
	return syscall.EIO
}

// copyFile copies the file as kill -9 would leave it.
func (m *model) copyFile() error {
	from := filepath.Join(m.home(), journal.FileName)
	m.life++
	if err := os.MkdirAll(m.home(), 0o700); err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.home(), journal.FileName), data, 0o600)
}

// settle waits until the index has logged what nobody waits for, such as that a rank is
// alive.
func (m *model) settle() { _ = m.b.log.Append(func(error) {})(ctx) }

// op wraps every operation: it draws a fault, runs the operation, restarts the index if it
// died, and reports whether the operation succeeded.
func (m *model) op(t *rapid.T, mayRemove int, f func() error) (succeeded bool) {
	m.settle()
	m.fault = rapid.SampledFrom([]fault{noFault, noFault, noFault, noFault, noFault, diskFull, crashBefore, crashAfter, callerGone}).Draw(t, "fault")
	m.ctx, m.leave = context.WithCancel(ctx)
	m.left = make(chan struct{})
	defer m.leave()
	planned := m.fault
	m.before, m.world = m.list(t), m.needed(t)
	kept := m.kept()
	err := f()
	close(m.left)
	m.gone = errors.Is(err, context.Canceled)
	m.settle() // a write that nobody waits for may meet the fault later
	died := m.fault == crashed
	failed := planned == diskFull && m.fault == noFault
	m.fault = noFault
	switch {
	case m.gone:
		m.nothingLost(t, mayRemove)
		return false
	case died:
		_ = m.b.Close()
		m.clock = m.clock.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "down")) * time.Second)
		m.reopen(t)
		if planned == crashBefore {
			mayRemove = 0
			m.freeAtOnce(t, kept)
		}
		m.nothingLost(t, mayRemove)
		return false
	case failed:
		if err == nil {
			return true
		}
		if !errors.Is(err, pageservice.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("full disk: %v", err)
		}
		m.nothingLost(t, 0)
		return false
	case err != nil:
		t.Fatalf("unexpected: %v", err)
	}
	return true
}

func (m *model) list(t *rapid.T) map[string]pageservice.Entry {
	entries, err := m.b.List(ctx, modelSpace, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]pageservice.Entry{}
	for _, e := range entries {
		all[e.Key] = e
	}
	return all
}

// needed returns how many ranks a key needs to be complete.
func (m *model) needed(t *rapid.T) int {
	states, err := m.b.Stat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return states[0].World
}

// nothingLost compares with the time before the operation: at most mayRemove keys have
// lost a page, or are no longer visible. Evicted keys may have come back.
func (m *model) nothingLost(t *rapid.T, mayRemove int) {
	now := m.list(t)
	lost := map[string]bool{}
	for key, e := range m.before {
		// When a stale rank returns, keys that it does not have are hidden.
		if e.Complete && !now[key].Complete && m.needed(t) == m.world {
			lost[key] = true
		}
		for rank, page := range e.Pages {
			if p, ok := now[key].Pages[rank]; !ok || p != page {
				lost[key] = true
			}
		}
	}
	if len(lost) > mayRemove {
		t.Fatalf("keys lost: %v; at most %d", lost, mayRemove)
	}
	if mayRemove > 0 && mayRemove < 1000 {
		for _, r := range m.readers {
			page, had := m.before[r.key].Pages[r.rank]
			if lost[r.key] && had && page == r.page && r.until.After(m.clock) {
				t.Fatalf("%q was lost while leased", r.key)
			}
		}
	}
}

// write writes the bytes of a key into a page.
func (m *model) write(t *rapid.T, w *writer) {
	m.files[w.rank][w.page] = w.key
	w.wrote = true
	for _, r := range m.readers {
		if r.rank == w.rank && r.page == w.page && r.key != w.key && r.until.After(m.clock) {
			t.Fatalf("rank %d page %d: %q is being read, %q is written", r.rank, r.page, r.key, w.key)
		}
	}
}

func (m *model) reserve(t *rapid.T) {
	rank := rapid.IntRange(0, 1).Draw(t, "rank")
	keys := rapid.SliceOfN(drawKey, 1, 4).Draw(t, "keys")
	all := rapid.Bool().Draw(t, "all")
	m.reserveKeys(t, rank, keys, all)
}

// save does what engines mostly do: all ranks reserve, write and confirm.
func (m *model) save(t *rapid.T) {
	key := drawKey.Draw(t, "key")
	for rank := range 2 {
		n := len(m.writers)
		m.reserveKeys(t, rank, []string{key}, true)
		if len(m.writers) > n {
			m.confirmWritten(t, m.writers[n], nil)
		}
	}
}

func (m *model) reserveKeys(t *rapid.T, rank int, keys []string, all bool) {
	begin := m.clock
	due := m.due(rank, keys, all)
	before := m.held(rank)
	var grants []pageservice.Grant
	mayRemove := len(keys)
	if m.o.MemoryBytes == fewBytes {
		mayRemove += 100 // keys are evicted to make room
	}
	succeeded := m.op(t, mayRemove, func() (err error) {
		grants, err = m.b.Reserve(m.ctx, modelSpace, rank, keys, all)
		return err
	})
	now := m.held(rank)
	for _, w := range m.writers {
		if w.rank == rank && now[w.page] && !before[w.page] {
			w.former = true
		}
	}
	if !succeeded {
		return
	}
	pageOf := map[string]int64{}
	none, some, got := false, false, 0
	for i, g := range grants {
		if p, ok := pageOf[keys[i]]; ok && p != g.Page {
			t.Fatalf("%q got pages %d and %d", keys[i], p, g.Page)
		}
		_, again := pageOf[keys[i]]
		pageOf[keys[i]] = g.Page
		if g.Page == pageservice.None {
			none = true
			continue
		}
		if !g.Present {
			some = true
		}
		if again {
			continue
		}
		if !g.Present {
			got++
		}
		if g.Present {
			if m.files[rank][g.Page] != keys[i] {
				t.Fatalf("%q is not at %d", keys[i], g.Page)
			}
		} else {
			m.mustBeIdle(t, rank, g.Page)
		}
		m.writers = append(m.writers, &writer{
			rank: rank, key: keys[i], page: g.Page, present: g.Present, begin: begin,
			until: begin.Add(m.o.Reserve + m.o.Quarantine),
		})
	}
	if m.o.MemoryBytes == fewBytes {
		due = min(due, got) // memory may be what is missing
	}
	if due >= 0 && got != due {
		t.Fatalf("%d pages were given out for %q, want %d", got, keys, due)
	}
	if all && none && some {
		t.Fatal("some keys got a page and some did not, in spite of allOrNothing")
	}
}

// due returns how many pages a reservation must get: it overlooks no key that may be
// evicted, however few it looks at in one go. It returns -1 for a stale rank.
func (m *model) due(rank int, keys []string, all bool) int {
	s := m.b.find(modelSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, now := s.ranks[rank], m.b.now()
	if r.stale {
		return -1
	}
	s.sweep(r, now)
	wanted := map[string]bool{}
	for _, key := range keys {
		wanted[key] = true
	}
	idle := 0
	if r.closedUntil <= now {
		idle = int(r.numFree())
	}
	for id, e := range s.entries.all {
		switch {
		case !r.has(id):
		case wanted[e.key]:
			delete(wanted, e.key)
		case s.evictableFrom(e) <= now && r.closedUntil <= now:
			idle++
		}
	}
	if all && idle < len(wanted) {
		return 0
	}
	return min(idle, len(wanted))
}

// mustBeIdle checks that no other client may use a page that a writer just got.
func (m *model) mustBeIdle(t *rapid.T, rank int, page int64) {
	for _, w := range m.writers {
		if w.rank == rank && w.page == page && w.until.After(m.clock) {
			t.Fatalf("rank %d page %d was given out, but %+v may write it", rank, page, *w)
		}
	}
	for _, r := range m.readers {
		if r.rank == rank && r.page == page && r.until.After(m.clock) {
			t.Fatalf("rank %d page %d was given out, but %+v may read it", rank, page, r)
		}
	}
}

// drawWriter draws a writer that has not confirmed or released.
func (m *model) drawWriter(t *rapid.T) *writer {
	var some []*writer
	for _, w := range m.writers {
		if !w.over {
			some = append(some, w)
		}
	}
	if len(some) == 0 {
		t.Skip("there is no writer")
	}
	return rapid.SampledFrom(some).Draw(t, "writer")
}

func (m *model) lateWrite(t *rapid.T) {
	if w := m.drawWriter(t); w.until.After(m.clock) {
		m.write(t, w)
	}
}

func (m *model) confirm(t *rapid.T) {
	w := m.drawWriter(t)
	var other *writer
	if rapid.Bool().Draw(t, "release") {
		if other = m.drawWriter(t); other.rank != w.rank || other == w {
			other = nil
		}
	}
	m.confirmWritten(t, w, other)
}

// held returns the pages of a rank that are reserved or in quarantine.
func (m *model) held(rank int) map[int64]bool {
	s := m.b.find(modelSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := map[int64]bool{}
	if r := s.ranks[rank]; r != nil {
		s.sweep(r, m.b.now())
		for page := range r.owner {
			if r.holdOf(uint32(page)) != nil {
				held[int64(page)] = true
			}
		}
	}
	return held
}

// confirmWritten writes and confirms a page, and releases that of another writer.
func (m *model) confirmWritten(t *rapid.T, w, other *writer) {
	if w.former {
		// The page was given out for the same key again. The protocols name only key and
		// page, so the index cannot tell who confirms. This writer is too late by more
		// than a quarantine, and must not confirm.
		w.over = true
		return
	}
	if !w.wrote {
		if !w.until.After(m.clock) {
			w.over = true
			return
		}
		m.write(t, w)
	}
	batch := []pageservice.Placed{{Key: w.key, Page: w.page}}
	var release []int64
	if other != nil {
		release = append(release, other.page)
	}
	var c pageservice.Confirmed
	if !m.op(t, 0, func() (err error) {
		c, err = m.b.Confirm(m.ctx, modelSpace, w.rank, batch, release)
		return err
	}) {
		if m.gone && w.until.After(m.clock) {
			w.until = m.clock // it had written everything
		}
		return // it may retry
	}
	inTime := w.until.Add(-m.o.Quarantine).After(m.clock)
	w.over = true
	if w.until.After(m.clock) {
		w.until = m.clock // it writes no more
	}
	if other != nil {
		other.over = true
	}
	if c.Keys+c.Released+c.Ignored != 1+len(release) {
		t.Fatalf("counted %+v", c)
	}
	// Its key was there, or is there now, even if a second page was given up.
	if _, found := m.list(t)[w.key].Pages[w.rank]; !found && inTime && !w.present && !w.void {
		t.Fatalf("%q was confirmed on rank %d and is not there", w.key, w.rank)
	}
}

func (m *model) read(t *rapid.T) {
	defer m.settle()
	rank := rapid.IntRange(0, 1).Draw(t, "rank")
	keys := rapid.SliceOfN(drawKey, 1, 4).Draw(t, "keys")
	found, err := m.b.Locate(ctx, modelSpace, rank, keys)
	if err != nil {
		t.Fatal(err)
	}
	exists, err := m.b.Exists(ctx, modelSpace, keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, page := range found {
		needed := m.o.World == 0 || rank < m.o.World // others may lack a visible key
		if exists[i] != (page != pageservice.None) && (needed || !exists[i]) {
			t.Fatalf("%q exists: %t, at %d", keys[i], exists[i], page)
		}
		if page == pageservice.None {
			continue
		}
		if m.files[rank][page] != keys[i] {
			t.Fatalf("%q was located at %d, where %q is", keys[i], page, m.files[rank][page])
		}
		m.readers = append(m.readers, reader{rank, keys[i], page, m.clock.Add(m.o.Lease + m.o.Quarantine)})
	}
}

func (m *model) remove(t *rapid.T) {
	keys := rapid.SliceOfN(drawKey, 1, 3).Draw(t, "keys")
	m.op(t, 1000, func() error { _, err := m.b.Delete(m.ctx, modelSpace, keys); return err })
	m.voidAll()
}

func (m *model) evict(t *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(t, "n")
	m.op(t, 100, func() error { _, err := m.b.Evict(m.ctx, modelSpace, n); return err })
}

func (m *model) clear(t *rapid.T) {
	m.op(t, 1000, func() error { return m.b.Clear(m.ctx, modelSpace) })
	m.voidAll()
}

func (m *model) initialize(t *rapid.T) {
	rank := rapid.IntRange(0, 1).Draw(t, "rank")
	numPages := rapid.SampledFrom([]int64{4, 4, 3}).Draw(t, "pages")
	m.op(t, 1000, func() error {
		_, err := m.b.Initialize(m.ctx, modelSpace, rank, pageservice.RankOptions{NumPages: numPages})
		return err
	})
	m.voidAll()
}

// stray initialises a rank that does not exist, and forgets a rank, as an operator would
// to put that right.
func (m *model) stray(t *rapid.T) {
	m.op(t, 1000, func() error {
		_, err := m.b.Initialize(m.ctx, modelSpace, 2, pageservice.RankOptions{NumPages: 4})
		return err
	})
	rank := rapid.IntRange(1, 2).Draw(t, "rank")
	m.op(t, 1000, func() error {
		if err := m.b.Forget(m.ctx, modelSpace, rank); !errors.Is(err, pageservice.ErrUnknownRank) {
			return err
		}
		return nil
	})
	m.voidAll()
	for m.b.find(modelSpace).ranks[1] == nil { // the engine starts anew
		m.op(t, 1000, func() error {
			_, err := m.b.Initialize(m.ctx, modelSpace, 1, pageservice.RankOptions{NumPages: 4})
			return err
		})
	}
}

// lateRelease releases the page of a writer that fails late, when others may have it.
func (m *model) lateRelease(t *rapid.T) {
	if len(m.writers) == 0 {
		t.Skip("there is no writer")
	}
	w := rapid.SampledFrom(m.writers).Draw(t, "writer")
	if _, err := m.b.Confirm(ctx, modelSpace, w.rank, nil, []int64{w.page}); err != nil {
		t.Fatal(err)
	}
	w.over = true
}

// voidAll records that reservations may have ended, so confirmations need not succeed.
func (m *model) voidAll() {
	for _, w := range m.writers {
		w.void = true
	}
}

func (m *model) wait(t *rapid.T) {
	s := rapid.SampledFrom([]int{1, 4, 6, 11, 31, 61}).Draw(t, "seconds")
	m.settle()
	m.clock = m.clock.Add(time.Duration(s) * time.Second)
}

// neverStuck checks that there is a page for a new key once all leases and reservations
// have ended.
func (m *model) neverStuck(t *rapid.T) {
	m.settle()
	m.clock = m.clock.Add(m.o.Reserve + m.o.Lease + 2*m.o.Quarantine)
	grants, err := m.b.Reserve(ctx, modelSpace, 0, []string{"new"}, true)
	if err == nil && grants[0].Page == pageservice.None && m.o.MemoryBytes == fewBytes {
		return // the tables of so small a space cannot shrink
	}
	if err != nil || grants[0].Page == pageservice.None {
		t.Fatalf("no page for a new key: %v %v", grants, err)
	}
	m.mustBeIdle(t, 0, grants[0].Page)
	_, err = m.b.Confirm(ctx, modelSpace, 0, nil, []int64{grants[0].Page})
	if err != nil {
		t.Fatal(err)
	}
}

// restart closes the index and opens it again.
func (m *model) restart(t *rapid.T) {
	m.before, m.world = m.list(t), m.needed(t)
	m.settle()
	kept := m.kept()
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	m.reopen(t)
	m.nothingLost(t, 0)
	m.freeAtOnce(t, kept)
}

// kept returns how many pages of each rank a restart would find free, as the index sees it.
func (m *model) kept() map[int]int64 {
	s := m.b.find(modelSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[int]int64{}
	for id, r := range s.ranks {
		all[id] = r.numKept()
	}
	return all
}

// freeAtOnce checks that a restart has found as many pages free.
func (m *model) freeAtOnce(t *rapid.T, kept map[int]int64) {
	s := m.b.find(modelSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.ranks {
		if r.numFree() < kept[id] {
			t.Fatalf("rank %d has %d free pages after a restart, and %d were kept", id, r.numFree(), kept[id])
		}
	}
}

// keptAlways checks that a rank of which clients use no page keeps as many pages free as it should, once
// pages were reserved a few times.
func (m *model) keptAlways(t *rapid.T) {
	if m.o.MemoryBytes == fewBytes {
		t.Skip("memory may be what is missing")
	}
	for range 3 {
		m.neverStuck(t)
	}
	s := m.b.find(modelSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ranks[0]; r.numKept() < s.toKeep(r) {
		t.Fatalf("%d pages are kept free, of %d", r.numKept(), r.numPages)
	}
}

// lower starts the index with a bound that is too small for any key, and then again with
// the former bound.
func (m *model) lower(t *rapid.T) {
	m.settle()
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	before := m.o.MemoryBytes
	m.o.MemoryBytes = tooFew
	m.reopen(t)
	if left := m.list(t); len(left) > 0 {
		t.Fatalf("%v do not fit into %d bytes", left, tooFew)
	}
	m.voidAll()
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	m.o.MemoryBytes = before
	m.reopen(t)
	if left := m.list(t); len(left) > 0 {
		t.Fatalf("%v have come back", left)
	}
}

// shrink makes the tables anew.
func (m *model) shrink(*rapid.T) {
	m.settle()
	s := m.b.find(modelSpace)
	if err := s.lockAlone(ctx); err == nil {
		s.shrink()
		s.unlockAlone()
	}
}

// check runs after every step.
func (m *model) check(t *rapid.T) {
	if err := m.b.Check(); err != nil {
		t.Fatal(err)
	}
	for key, e := range m.list(t) {
		for rank, page := range e.Pages {
			if m.files[rank][page] != key {
				t.Fatalf("rank %d page %d belongs to %q, but %q is there", rank, page, key, m.files[rank][page])
			}
		}
	}
	for _, r := range m.readers {
		if r.until.After(m.clock) && m.files[r.rank][r.page] != r.key {
			t.Fatalf("%+v reads %q", r, m.files[r.rank][r.page])
		}
	}
	states, err := m.b.Stat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range states[0].Ranks {
		if r.Free+r.Reserved+r.Keyed+r.Quarantined != r.NumPages {
			t.Fatalf("pages do not add up: %+v", r)
		}
	}
}

var drawKey = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})

// No reader ever sees bytes of another key, no page has two owners, and nothing that was
// confirmed is lost: whatever the order of requests, with late writers, a full disk, and a
// process that dies before or after any write.
func TestNoWrongPageWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		slack := rapid.SampledFrom([]int64{1, 200, 4 << 20}).Draw(rt, "slack")
		m, err := newModel(dir, slack, rapid.IntRange(1, 3).Draw(rt, "looks"), rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(rt, "world"),
			rapid.SampledFrom([]int64{0, 0, fewBytes}).Draw(rt, "memory"), rapid.SampledFrom([]float64{0, 0.25, 0.5}).Draw(rt, "free"))
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = m.b.Close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"save": m.save, "save2": m.save, "save3": m.save,
			"reserve":    m.reserve,
			"write":      m.lateWrite,
			"confirm":    m.confirm,
			"read":       m.read,
			"read2":      m.read,
			"delete":     m.remove,
			"evict":      m.evict,
			"clear":      m.clear,
			"initialize": m.initialize,
			"stray":      m.stray,
			"release":    m.lateRelease,
			"wait":       m.wait,
			"wait2":      m.wait,
			"wait3":      m.wait,
			"never":      m.neverStuck,
			"kept":       m.keptAlways,
			"restart":    m.restart,
			"lower":      m.lower,
			"shrink":     m.shrink,
			"":           m.check,
		})
	})
}
