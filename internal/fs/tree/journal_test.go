package tree

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// stateDir returns a directory in a tmpfs, for the state of one daemon.
func stateDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kv3fs-tree-test-")
	if err != nil {
		t.Skip("no tmpfs: ", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "state")
}

func openState(t testing.TB, path string) *restart.Dir {
	t.Helper()
	state, err := restart.Open(path, restart.Identity{Boot: "boot", Data: "data", Format: 1})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// successor is a tree over the same data and the state that another tree has left.
func successor(t testing.TB, data, state string) (*Tree, *restart.Dir) {
	t.Helper()
	d := openState(t, state)
	tr, err := Open(data, Options{State: d, StateLost: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	return tr, d
}

// die ends a tree as a kill does: what is not committed is lost, and nobody closes anything.
func die(tr *Tree, state *restart.Dir) {
	tr.journal.log.Close()
	for _, o := range tr.orphans {
		unix.Close(o.fd)
	}
	for _, o := range tr.closing {
		unix.Close(o.fd)
	}
	unix.Close(tr.rootFD)
	state.Close()
}

// shown is what clients and the kernel can tell of a node.
type shown struct {
	ino, lookups uint64
	kind         uint32
	path         string
	links        string
	gone, locked bool
	uid          uint32
}

func show(tr *Tree) map[uint64]shown {
	all := map[uint64]shown{}
	tr.mu.RLock()
	defer tr.mu.RUnlock()
	for n := range tr.byID.all {
		if n == tr.root {
			continue
		}
		var links []string
		for p := range tr.links[n] {
			links = append(links, tr.pathLocked(p))
		}
		slices.Sort(links)
		_, locked := tr.locks[n.key]
		all[n.id] = shown{n.ino, n.lookups, n.kind, tr.pathLocked(n.place), fmt.Sprint(links), !tr.identified(n), locked, n.uid}
	}
	return all
}

// A successor knows the nodes of a tree that was killed at any moment, after any of its operations, with their numbers, names and
// references, and gives none of their numbers to another.
func TestSuccessorKnowsNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	data, state := t.TempDir(), stateDir(t)
	tr, d := successor(t, data, state)
	used := map[uint64]string{}
	const lives, steps = 12, 150
	for life := range lives {
		for range random.IntN(steps) {
			step(t, random, tr, used)
			if random.IntN(40) == 0 {
				if err := tr.compactNow(); err != nil {
					t.Fatal(err)
				}
			}
		}
		tr.Commit()
		before := show(tr)
		if err := tr.inconsistent(); err != nil {
			t.Fatal(err)
		}
		die(tr, d)
		tr, d = successor(t, data, state)
		if nodes, err := tr.Recalled(); err != nil || nodes != len(before) {
			t.Fatalf("life %d: recalled %d nodes, %v; want %d", life, nodes, err, len(before))
		}
		after := show(tr)
		for id, is := range before {
			if after[id] != is {
				t.Errorf("life %d: node %d is %+v; was %+v", life, id, after[id], is)
			}
		}
		if err := tr.inconsistent(); err != nil || len(after) != len(before) {
			t.Fatalf("life %d: %d nodes, were %d; %v", life, len(after), len(before), err)
		}
	}
	for id, n := range show(tr) {
		tr.Forget(id, n.lookups)
	}
	if n := tr.Nodes(); n != 1 {
		t.Errorf("%d nodes after all were forgotten", n)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	d.Close()
}

// step does something to a tree. used has the inodes of all numbers that were ever told.
func step(t *testing.T, random *rand.Rand, tr *Tree, used map[uint64]string) {
	t.Helper()
	dirs := []uint64{RootID}
	var others []uint64
	for id, n := range show(tr) {
		switch {
		case n.gone || n.lookups == 0: // the kernel asks for nothing there
		case n.kind == unix.S_IFDIR:
			dirs = append(dirs, id)
		default:
			others = append(others, id)
		}
	}
	slices.Sort(dirs)
	slices.Sort(others)
	dir := func() uint64 { return dirs[random.IntN(len(dirs))] }
	name := func() string { return string('a' + rune(random.IntN(5))) }
	var e Entry
	var err error
	switch random.IntN(10) {
	case 0, 1:
		e, err = tr.Mknod(dir(), name(), 0o644, alice, 0)
	case 2:
		e, err = tr.Mkdir(dir(), name(), 0o755, alice, 0)
	case 3:
		err = tr.Rename(dir(), name(), dir(), name(), uint32(random.IntN(3)), root)
	case 4:
		err = tr.Unlink(dir(), name())
	case 5:
		err = tr.Rmdir(dir(), name())
	case 6:
		if len(others) > 0 {
			e, err = tr.Link(others[random.IntN(len(others))], dir(), name(), alice, 0)
		}
	case 7:
		all := slices.Collect(maps.Keys(show(tr)))
		if len(all) > 0 {
			slices.Sort(all)
			id := all[random.IntN(len(all))]
			if n := show(tr)[id]; n.lookups > 0 {
				tr.Forget(id, 1+random.Uint64N(n.lookups))
			}
		}
	case 8:
		if id := dir(); id != RootID && random.IntN(2) == 0 {
			err = tr.Lock(id, 7)
		} else if id != RootID {
			err = tr.Unlock(id)
		}
	default:
		e, err = tr.Lookup(dir(), name(), 12345, 0)
	}
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		t.Fatal(err)
	}
	if err == nil && e.ID != 0 {
		if e.New {
			if inode := used[e.ID]; inode != "" {
				t.Fatalf("node %d is a new one, and was %s", e.ID, inode)
			}
			tr.Charge(e.ID, 12345)
		}
		used[e.ID] = fmt.Sprint(e.Attr.Ino)
	}
}

// A daemon that is killed between a rename and its note has not lost the file; without the note before the
// rename it would have.
func TestKilledInRename(t *testing.T) {
	for _, noted := range []bool{true, false} {
		data, state, copied := t.TempDir(), stateDir(t), stateDir(t)
		tr, d := successor(t, data, state)
		from := must(tr.Mkdir(RootID, "from", 0o755, root, 0)).ID
		to := must(tr.Mkdir(RootID, "to", 0o755, root, 0)).ID
		f := must(tr.Mknod(from, "f", 0o644, root, 0)).ID
		tr.Commit()
		snap := func(...uint64) error { return os.CopyFS(copied, os.DirFS(state)) }
		if !noted {
			if err := snap(); err != nil {
				t.Fatal(err)
			}
			snap = func(...uint64) error { return nil }
		}
		if err := tr.Rename(from, "f", to, "g", 0, root, snap); err != nil {
			t.Fatal(err)
		}
		die(tr, d)
		if err := os.Chmod(copied, 0o700); err != nil {
			t.Fatal(err)
		}
		tr, d = successor(t, data, copied)
		_, err := tr.Getattr(f, 0)
		if found := err == nil; found != noted {
			t.Errorf("noted before: %v; found after: %v (%v)", noted, found, err)
		}
		die(tr, d)
	}
}

// Cut anywhere, the log leads to a tree that is consistent and whose new nodes have new numbers; with a byte changed
// anywhere, also to one that says so, or to the same.
func TestDamagedJournal(t *testing.T) {
	data, state := t.TempDir(), stateDir(t)
	tr, d := successor(t, data, state)
	dir := must(tr.Mkdir(RootID, "dir", 0o755, root, 0)).ID
	last := uint64(0)
	for i := range 20 {
		last = max(last, must(tr.Mknod(dir, fmt.Sprint(i), 0o644, root, 0)).ID)
		tr.Commit()
	}
	die(tr, d)
	file := filepath.Join(state, journalFile)
	whole := must(os.ReadFile(file))
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	for try := range 200 {
		damaged := slices.Clone(whole)
		if try%2 == 0 {
			damaged = damaged[:random.IntN(len(damaged))]
		} else {
			damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
		}
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		tr, d := successor(t, data, state)
		nodes, err := tr.Recalled()
		if err != nil && (nodes != 0 || !errors.Is(err, restart.ErrDamaged)) || nodes > 21 {
			t.Fatalf("%d nodes, %v", nodes, err)
		}
		if err := tr.inconsistent(); err != nil {
			t.Fatal(err)
		}
		e := must(tr.Mknod(RootID, fmt.Sprint("new", try), 0o644, root, 0))
		if e.ID <= last {
			t.Fatalf("node %d may have been told before: %d was", e.ID, last)
		}
		last = e.ID
		die(tr, d)
	}
}

// FuzzJournal reads any bytes as records: they lead to an error or to a consistent tree.
func FuzzJournal(f *testing.F) {
	data, state := f.TempDir(), stateDir(f)
	d := openState(f, state)
	f.Cleanup(func() { d.Close() })
	tr, err := Open(data, Options{State: d})
	if err != nil {
		f.Fatal(err)
	}
	e := must(tr.Mkdir(RootID, "dir", 0o755, root, 0))
	must(tr.Mknod(e.ID, "f", 0o644, root, 0))
	f.Add(slices.Clone(tr.journal.pending))
	tr.Commit()
	f.Cleanup(func() { tr.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRecalled()
		if err := r.read(b); err != nil {
			if !errors.Is(err, restart.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		r.moving = nil // asks the disk
		tr, err := Open(data, Options{})
		if err != nil {
			t.Fatal(err)
		}
		tr.recall(r)
		if err := tr.inconsistent(); err != nil {
			t.Fatal(err)
		}
		for n := range tr.byID.all {
			tr.path(n.place)
		}
		unix.Close(tr.rootFD)
	})
}

// A file that was open is opened again by its successor, also if its name was removed and made anew meanwhile; the
// rights of whoever has it open go with it.
func TestReopen(t *testing.T) {
	data, state := t.TempDir(), stateDir(t)
	tr, d := successor(t, data, state)
	e, h := create(t, tr, RootID, "f", alice, 0o600)
	s := h.State()
	if len(s.Inode) == 0 {
		t.Skip("the file system does not name its inodes")
	}
	held := must(os.Open(filepath.Join(data, "f"))) // as the kernel's own descriptor does
	defer held.Close()
	if err := errors.Join(os.Remove(filepath.Join(data, "f")), os.WriteFile(filepath.Join(data, "f"), []byte("other"), 0o644)); err != nil {
		t.Fatal(err)
	}
	tr.Commit()
	die(tr, d)
	h.Close()
	tr, d = successor(t, data, state)
	defer d.Close()
	h, err := tr.Reopen(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Write([]byte("mine"), 0, false, alice.UID, nil); err != nil {
		t.Error(err)
	}
	if b := make([]byte, 9); must(held.ReadAt(b[:4], 0)) != 4 || string(b[:4]) != "mine" {
		t.Errorf("the file that was open has %q", b)
	}
	if f, err := tr.Acquire(e.Attr.Ino, alice, true); err != nil {
		t.Errorf("a ring of the user: %v", err)
	} else {
		f.Release()
	}
	if f, err := tr.Acquire(e.Attr.Ino, bob, true); err == nil {
		f.Release()
		t.Error("a ring of another user writes")
	}
	h.Close()
	s.Node++
	if _, err := tr.Reopen(s); err != unix.ESTALE {
		t.Errorf("a node that is not known: %v", err)
	}
	tr.Forget(e.ID, 1)
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// What a successor costs: a look-up with the log and without, and how long a million nodes take to read.
func BenchmarkLookup(b *testing.B) {
	for _, logged := range []bool{false, true} {
		b.Run(fmt.Sprintf("log=%v", logged), func(b *testing.B) {
			o := Options{}
			if logged {
				o.State = openState(b, stateDir(b))
				defer o.State.Close()
			}
			tr, dir := newTree(b, o)
			if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
				b.Fatal(err)
			}
			used := cpuTime()
			for b.Loop() {
				e, err := tr.Lookup(RootID, "f", 0, time.Second)
				if err != nil {
					b.Fatal(err)
				}
				tr.Commit()
				tr.Forget(e.ID, 1)
			}
			b.ReportMetric(float64(cpuTime()-used)/float64(b.N), "cpu-ns/op") // also true on a busy machine
			tr.Commit()
		})
	}
}

func cpuTime() time.Duration {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func BenchmarkRecall(b *testing.B) {
	const nodes = 1 << 20
	state := stateDir(b)
	d := openState(b, state)
	defer d.Close()
	tr, data := newTree(b, Options{State: d})
	parent := must(tr.Mkdir(RootID, "dir", 0o755, root, 0)).ID
	n, _ := tr.byID.get(parent)
	for i := range nodes {
		st := unix.Statx_t{Ino: uint64(1<<30 + i), Mode: unix.S_IFREG, Nlink: 1}
		tr.remember(place{n, fmt.Sprintf("block-%016x.safetensors", i)}, &st, 0)
		tr.commitMany()
	}
	tr.Commit()
	b.ReportMetric(float64(tr.journal.log.Bytes())/(1<<20), "MiB")
	began := time.Now()
	if err := tr.compactNow(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds()*1e3, "compact-ms")
	for b.Loop() {
		again, err := Open(data, Options{})
		if err != nil {
			b.Fatal(err)
		}
		r := newRecalled()
		log, err := d.OpenLog(journalFile, journalVersion, r.read)
		if err != nil {
			b.Fatal(err)
		}
		if got := again.recall(r); got != nodes+1 {
			b.Fatalf("%d nodes", got)
		}
		log.Close()
		unix.Close(again.rootFD)
	}
}

// What one user has no room for is another's nevertheless, who has: whoever looked first at the directories above it, or at itself.
func TestRoomOfOthers(t *testing.T) {
	const full, other = 1000, 1001
	data, path := t.TempDir(), stateDir(t)
	for _, dir := range []string{"common/eng", "before/eng"} {
		if err := os.MkdirAll(filepath.Join(data, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"common/eng/f", "seen", "open", "lost"} {
		if err := os.WriteFile(filepath.Join(data, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tr, state := successor(t, data, path)
	look := func(dir uint64, name string, uid uint32) uint64 {
		e, err := tr.Lookup(dir, name, uid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if e.New {
			tr.Charge(e.ID, uid)
		}
		return e.ID
	}
	before := look(RootID, "before", full)
	known := map[string]uint64{"before": before, "before/eng": look(before, "eng", other)}
	for state.Take(full, 1<<10) || state.Take(full, 1) {
	}
	// Names that become longer, and all that is new, find no room.
	if err := tr.Rename(RootID, "before", RootID, "a longer name than that", 0, root); err != nil {
		t.Fatal(err)
	}
	common := look(RootID, "common", full)
	eng := look(common, "eng", other)
	known["common"], known["common/eng"], known["common/eng/f"] = common, eng, look(eng, "f", other)
	known["seen"], known["open"] = look(RootID, "seen", full), look(RootID, "open", full)
	lost := look(RootID, "lost", full)
	look(RootID, "seen", other)
	tr.Uses(known["open"], other)
	tr.Commit()
	if err := tr.inconsistent(); err != nil {
		t.Error(err)
	}
	if held := tr.Held(full); held != 2 {
		t.Errorf("%d nodes are charged to the user without room, want 2", held)
	}

	die(tr, state)
	tr, state = successor(t, data, path)
	all := show(tr)
	for name, id := range known {
		if _, ok := all[id]; !ok {
			t.Errorf("%s is not known any more", name)
		}
	}
	if is, ok := all[lost]; ok {
		t.Errorf("there was room for %+v", is)
	}
	if err := tr.inconsistent(); err != nil {
		t.Error(err)
	}
	die(tr, state)
}
