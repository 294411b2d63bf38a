package ringserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// lineage is a state directory and the daemons that have it one after the other.
type lineage struct {
	t    *testing.T
	path string
	dir  *restart.Dir
	s    *Server
	log  lines

	sameMount bool // the mount of the first daemon goes on

	files *dirFiles
	end   func(leave bool)
}

func newLineage(t *testing.T) *lineage {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("objects without a name are found by their handles, which needs root")
	}
	top, err := os.MkdirTemp(shm.Dir, "kv3fs-adopt-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	l := &lineage{t: t, path: filepath.Join(top, "state"), files: newDirFiles()}
	t.Cleanup(func() {
		if l.end != nil {
			l.end(false)
		}
		for _, f := range l.files.files {
			f.Close()
		}
	})
	return l
}

// begin starts the next daemon; without run it serves nothing.
func (l *lineage) begin(run bool) *Server {
	l.t.Helper()
	var err error
	if l.dir, err = restart.Open(l.path, restart.Identity{Boot: "b", Data: "d", Format: 1}); err != nil {
		l.t.Fatal(err)
	}
	l.log.reset()
	l.s, err = New(l.files, nobodyReadonly, blockio.Mover{}, Options{Restart: l.dir, SameMount: l.sameMount, Logger: slog.New(slog.NewTextHandler(&l.log, nil))})
	if err != nil {
		l.t.Fatal(err)
	}
	s := l.s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	if run {
		go func() { done <- s.Run(ctx) }()
	} else {
		done <- nil
	}
	l.end = func(leave bool) {
		if leave {
			s.Leave()
		}
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		s.Close()
		if leave {
			err = l.dir.Close()
		} else {
			err = l.dir.Clear()
		}
		if err != nil {
			l.t.Error(err)
		}
		l.end = nil
	}
	return s
}

// next ends a daemon that leaves all to the next one, and begins that.
func (l *lineage) next(between func()) *Server {
	l.t.Helper()
	l.end(true)
	if between != nil {
		between()
	}
	return l.begin(true)
}

// member is a registration as a client of another process sees it: the object has no name any more.
type member struct {
	mem  *shm.Mapping
	name string
}

func (l *lineage) register(suffix string, size int64) member {
	l.t.Helper()
	object := "hf3fs-iov-" + wire.NewUUID().String()
	m, err := shm.Create(object, size, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(m.Unmap)
	defer shm.Remove(object)
	name := wire.NewUUID().String() + suffix
	if _, err := l.s.Register(me, name, filepath.Join(shm.Dir, object)); err != nil {
		l.t.Fatal(err)
	}
	return member{m, name}
}

const adoptedEntries = 16

func (l *lineage) ring() member { return l.register(".r0.t0", wire.RingBytes(adoptedEntries)) }

func TestRegistrationsAreTakenOver(t *testing.T) {
	l := newLineage(t)
	s := l.begin(true)
	var all []member
	for range 3 {
		all = append(all, l.register("", 8192), l.ring())
	}
	if err := s.Unregister(me, all[2].name); err != nil {
		t.Fatal(err)
	}
	links := [3]string{}
	for i, p := range priorities {
		var err error
		if links[i], err = s.SubmitLink(me, p); err != nil {
			t.Fatal(err)
		}
	}
	before := s.List(me.UID)
	for range 2 {
		s = l.next(nil)
		if after := s.List(me.UID); !slices.Equal(before, after) {
			t.Fatalf("before: %v\nafter: %v\n%s", before, after, l.log.String())
		}
		for i, p := range priorities {
			if link, err := s.SubmitLink(me, p); link != links[i] || err != nil {
				t.Errorf("submit semaphore: %s, %v, before: %s", link, err, links[i])
			}
		}
	}
	if strings.Contains(l.log.String(), "WARN") {
		t.Errorf("%s", l.log.String())
	}
	l.register("", 4096) // gets an index of its own
	if err := s.Unregister(me, all[1].name); err != nil {
		t.Error(err)
	}
	l.end(false)
	for _, link := range links {
		if _, err := os.Stat(link); !os.IsNotExist(err) {
			t.Errorf("a semaphore was left: %v", err)
		}
	}
	if _, err := os.Stat(l.path); !os.IsNotExist(err) {
		t.Errorf("state was left: %v", err)
	}
	if gap := all[3].mem.LoadInt32(layoutOfTest().GapOff()); gap != 0 {
		t.Errorf("a client waits %d s for nobody", gap)
	}
}

func layoutOfTest() wire.Layout {
	layout, _ := wire.LayoutOf(wire.RingBytes(adoptedEntries))
	return layout
}

// A process that exits while there is no daemon loses its registrations, and its objects that still have names.
func TestOwnerDiesBetweenDaemons(t *testing.T) {
	t.Run("nothing is open", func(t *testing.T) { testOwnerDies(t, false) })
	t.Run("the directory is open", func(t *testing.T) { testOwnerDies(t, true) }) // so another process may have inherited it
}

func testOwnerDies(t *testing.T, opened bool) {
	l := newLineage(t)
	l.begin(true)
	l.register("", 4096)
	child := exec.Command("/bin/cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	object := "hf3fs-iov-" + wire.NewUUID().String()
	m, err := shm.Create(object, 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	m.Unmap()
	c := cred.Caller{UID: me.UID, GID: me.GID, PID: uint32(child.Process.Pid)}
	if _, err := l.s.Register(c, wire.NewUUID().String(), filepath.Join(shm.Dir, object)); err != nil {
		t.Fatal(err)
	}
	if opened {
		if _, err := l.s.DirOpened(c); err != nil {
			t.Fatal(err)
		}
	}
	s := l.next(func() {
		in.Close()
		if err := child.Wait(); err != nil {
			t.Fatal(err)
		}
	})
	if n := len(s.List(me.UID)); !opened && n != 1 {
		t.Errorf("%d registrations\n%s", n, l.log.String())
	}
	eventually(t, "its registration ends", func() bool { return len(s.List(me.UID)) == 1 })
	if said := l.log.String(); strings.Contains(said, "level=WARN") {
		t.Errorf("a process that has exited is nothing to warn of: %s", said)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(shm.Dir, object)); os.IsNotExist(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the object of the process that has exited stays")
		}
	}
}

// Clients that nobody will serve any more know it when the stop begins: the daemon may be killed before its end.
func TestClientsOfLastDaemonDoNotWait(t *testing.T) {
	l := newLineage(t)
	s := l.begin(true)
	before := l.ring()
	off := layoutOfTest().GapOff()
	if before.mem.LoadInt32(off) == 0 {
		t.Fatal("a client would not wait for a next daemon")
	}
	s.Last()
	after := l.ring()
	for _, r := range []member{before, after} {
		if gap := r.mem.LoadInt32(off); gap != 0 {
			t.Errorf("a client waits %d s for nobody", gap)
		}
	}
	if n := len(s.List(me.UID)); n != 2 {
		t.Errorf("%d registrations of 2 are served", n)
	}
}

// The number of an owner that has exited is another process's by now.
func TestOwnersNumberIsUsedAgain(t *testing.T) {
	l := newLineage(t)
	l.begin(true)
	l.ring()
	s := l.next(func() {
		l.edit(func(k *keptRegistration) { k.Owner.Start++ })
	})
	if n := len(s.List(me.UID)); n != 0 {
		t.Errorf("%d registrations\n%s", n, l.log.String())
	}
	for _, dir := range []string{registrationsDir, journalsDir} {
		if names, err := l.dir.Names(dir); len(names) != 0 || err != nil {
			t.Errorf("%s: %q, %v", dir, names, err)
		}
	}
}

// On a mount that goes on, the registrations of a process that has ended stay while a handle is open, and no longer.
func TestHandlesAreTakenOver(t *testing.T) {
	l := newLineage(t)
	l.sameMount = true
	l.begin(true)
	child := exec.Command("/bin/cat")
	in, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	object := "hf3fs-iov-" + wire.NewUUID().String()
	m, err := shm.Create(object, 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	m.Unmap()
	t.Cleanup(func() { os.Remove(filepath.Join(shm.Dir, object)) })
	c := cred.Caller{UID: me.UID, GID: me.GID, PID: uint32(child.Process.Pid)}
	if _, err := l.s.Register(c, wire.NewUUID().String(), filepath.Join(shm.Dir, object)); err != nil {
		t.Fatal(err)
	}
	open, err := l.s.DirOpened(c)
	if err == nil {
		_, err = l.s.DirOpened(c) // and the daemon is killed before the mount has noted it
	}
	if err != nil {
		t.Fatal(err)
	}
	s := l.next(func() {
		in.Close()
		if err := child.Wait(); err != nil {
			t.Fatal(err)
		}
	})
	s.DirsStayOpen([]uint64{open})
	s = l.next(nil)
	s.DirsStayOpen([]uint64{open})
	if n := len(s.List(me.UID)); n != 1 {
		t.Fatalf("%d registrations while a handle is open\n%s", n, l.log.String())
	}
	s.DirReleased(open)
	if n := len(s.List(me.UID)); n != 0 {
		t.Errorf("%d registrations stay\n%s", n, l.log.String())
	}
	for _, dir := range []string{registrationsDir, handlesDir} {
		if names, err := l.dir.Names(dir); len(names) != 0 || err != nil {
			t.Errorf("%s: %q, %v", dir, names, err)
		}
	}
}

// edit changes each registration in the state.
func (l *lineage) edit(change func(k *keptRegistration)) {
	l.t.Helper()
	d, err := restart.Open(l.path, restart.Identity{Boot: "b", Data: "d", Format: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	names, err := d.Names(registrationsDir)
	if err != nil || len(names) == 0 {
		l.t.Fatalf("%q, %v", names, err)
	}
	for _, name := range names {
		version, text, err := d.Read(registrationsDir + "/" + name)
		if err != nil {
			l.t.Fatal(err)
		}
		k, _, err := decodeRegistration(version, text)
		if err != nil {
			l.t.Fatal(err)
		}
		change(k)
		if text, err = k.encode(); err == nil {
			err = d.Write(registrationsDir+"/"+name, version, text)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// What a client does to its object while there is no daemon costs that client only.
func TestObjectsChangeBetweenDaemons(t *testing.T) {
	l := newLineage(t)
	l.begin(true)
	good := l.ring()
	shrunk, _, spoilt := l.ring(), l.register("", 4096), l.ring()
	s := l.next(func() {
		if err := shrunk.mem.Shrink(4096); err != nil {
			t.Fatal(err)
		}
		spoilt.mem.CopyIn(0, bytes.Repeat([]byte{0xff}, 16)) // the markers
		l.edit(func(k *keptRegistration) {
			if k.Bytes == 4096 { // another object by now
				k.Object.BirthNsec ^= 1
			}
		})
	})
	var names []string
	for _, r := range s.List(me.UID) {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{good.name, spoilt.name}) {
		t.Errorf("%q remain, want %q\n%s", names, []string{good.name, spoilt.name}, l.log.String())
	}
	for _, says := range []string{"was shrunk", "was replaced"} {
		if !strings.Contains(l.log.String(), says) {
			t.Errorf("nothing says %q:\n%s", says, l.log.String())
		}
	}
	// The daemon's markers are right again, and the client's, which it has spoilt, end its ring only.
	ping := int32(7)
	good.mem.StoreInt32(layoutOfTest().PingOff(), ping)
	for end := time.Now().Add(time.Minute); good.mem.LoadInt32(layoutOfTest().PongOff()) != ping; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a ring beside them is not served")
		}
	}
}

// Whatever a damaged state says, a daemon starts, and believes no more of it than it can check.
func TestDamagedRegistrations(t *testing.T) {
	l := newLineage(t)
	rng := rand.New(rand.NewPCG(seed.New(t), 0))
	l.begin(true)
	l.ring()
	l.register(".b4096", 8192)
	if _, err := l.s.SubmitLink(me, wire.Normal); err != nil {
		t.Fatal(err)
	}
	l.end(true)
	saved := map[string][]byte{}
	for _, dir := range []string{registrationsDir, journalsDir, semaphoresDir, "."} {
		entries, err := os.ReadDir(filepath.Join(l.path, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); e.Type().IsRegular() && e.Name() != "lock" && e.Name() != "identity" {
				if saved[name], err = os.ReadFile(filepath.Join(l.path, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(saved) < 5 {
		t.Fatalf("only %d files", len(saved))
	}
	rounds := 40
	if os.Getenv("KV3FS_SOAK") != "" {
		rounds = 2000
	}
	for range rounds {
		for name, b := range saved {
			b = slices.Clone(b)
			switch rng.IntN(6) {
			case 0:
				b = b[:rng.IntN(len(b))]
			case 1:
				b = append(b, byte(rng.Uint32()))
			case 2, 3:
				for range 1 + rng.IntN(4) {
					b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
				}
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(l.path, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(l.path, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l.begin(true)
		if n := len(l.s.List(me.UID)); n > 2 {
			t.Fatalf("%d registrations of 2", n)
		}
		l.end(true)
	}
}

// tamper writes a word of a journal.
func tamper(t *testing.T, path string, off int64, v uint64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), off); err != nil {
		t.Fatal(err)
	}
}

// journalOf makes a journal in which requests were taken and some of them completed, in any order.
func journalOf(t *testing.T, take, complete []int) (path string, layout wire.Layout, j *journal) {
	t.Helper()
	dir, err := os.MkdirTemp(shm.Dir, "kv3fs-journal-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, layout = filepath.Join(dir, "j"), layoutOfTest()
	j, err = newJournal(path, layout, 5, 7, quota.New(1<<30), 0)
	if err != nil {
		t.Fatal(err)
	}
	flying := map[int]*request{}
	var args [wire.ArgsBytes]byte
	for _, n := range take {
		q := &request{index: int32(n % adoptedEntries), userdata: uint64(n)}
		flying[n] = q
		j.admit(q, 0, &args)
		j.take(1)
	}
	for _, n := range complete {
		j.complete(flying[n])
		j.publish()
	}
	return path, layout, j
}

func userdataOf(all []unfinished) (ids []uint64) {
	for _, u := range all {
		ids = append(ids, u.userdata)
	}
	return ids
}

func TestJournal(t *testing.T) {
	path, layout, j := journalOf(t, []int{1, 2, 3, 4, 5}, []int{4, 1})
	q := &request{index: 9, userdata: 6}
	var args [wire.ArgsBytes]byte
	j.admit(q, 0, &args) // not taken
	j.close()
	again, all, err := openJournal(path, layout, quota.New(1<<30), 0)
	if err != nil {
		t.Fatal(err)
	}
	if ids := userdataOf(all); !slices.Equal(ids, []uint64{2, 3, 5}) {
		t.Errorf("in flight: %v", ids)
	}
	sqeTail, cqeHead := again.markers(layout)
	if sqeTail != 10 || cqeHead != 9 {
		t.Errorf("markers %d, %d", sqeTail, cqeHead)
	}
	// One whose completion was written but not published is posted again.
	again.complete(&request{slot: all[0].slot})
	again.close()
	last, all, err := openJournal(path, layout, quota.New(1<<30), 0)
	if err != nil || !slices.Equal(userdataOf(all), []uint64{2, 3, 5}) {
		t.Errorf("after an unpublished completion: %v, %v", userdataOf(all), err)
	}
	last.close()
}

// The first daemon is killed before it has taken a request, the second after it has taken it: that is in flight once, or not
// at all if it was completed.
func TestJournalOfTwoKills(t *testing.T) {
	for _, completed := range []bool{false, true} {
		path, layout, j := journalOf(t, []int{1, 2, 3}, []int{1, 2, 3})
		q := &request{index: 4, userdata: 4}
		var args [wire.ArgsBytes]byte
		var all []unfinished
		var err error
		j.admit(q, 0, &args)
		j.close()
		if j, all, err = openJournal(path, layout, quota.New(1<<30), 0); err != nil || len(all) > 0 {
			t.Fatalf("after the first: %v, %v", userdataOf(all), err)
		}
		j.admit(q, 0, &args)
		j.take(1)
		want := []uint64{4}
		if completed {
			j.complete(q)
			j.publish()
			want = nil
		}
		j.close()
		j, all, err = openJournal(path, layout, quota.New(1<<30), 0)
		if err != nil || !slices.Equal(userdataOf(all), want) {
			t.Errorf("completed %v: %v are in flight, %v", completed, userdataOf(all), err)
		}
		if err == nil {
			j.close()
		}
	}
}

// Whenever daemons are killed, the next one finds exactly what was taken and not posted.
func TestJournalOfManyKills(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.New(t), 0))
	path, layout, j := journalOf(t, nil, nil)
	var flying, waiting []*request // waiting: in the ring, admitted or not
	var args [wire.ArgsBytes]byte
	next, admitted, complete := uint64(0), 0, 0 // those admitted are the first of waiting, those complete the first of flying
	for range 20000 {
		switch rng.IntN(6) {
		case 0:
			waiting = append(waiting, &request{index: int32(next % adoptedEntries), userdata: next})
			next++
		case 1:
			if admitted < len(waiting) && len(j.free) > 0 && complete == 0 {
				j.admit(waiting[admitted], admitted, &args)
				admitted++
			}
		case 2:
			if admitted > 0 {
				j.take(admitted)
				flying = append(flying, waiting[:admitted]...)
				waiting, admitted = waiting[admitted:], 0
			}
		case 3:
			if complete < len(flying) && admitted == 0 {
				i := complete + rng.IntN(len(flying)-complete)
				flying[complete], flying[i] = flying[i], flying[complete]
				j.complete(flying[complete])
				complete++
			}
		case 4:
			j.publish()
			flying, complete = flying[complete:], 0
		case 5:
			if rng.IntN(4) > 0 {
				continue
			}
			j.close()
			var all []unfinished
			var err error
			if j, all, err = openJournal(path, layout, quota.New(1<<30), 0); err != nil {
				t.Fatal(err)
			}
			var want []uint64
			for _, q := range flying {
				want = append(want, q.userdata)
			}
			slices.Sort(want)
			if ids := userdataOf(all); !slices.Equal(ids, want) {
				t.Fatalf("in flight: %v, want %v", ids, want)
			}
			flying, admitted, complete = flying[:0:0], 0, 0
			for _, u := range all {
				flying = append(flying, &request{slot: u.slot, index: u.index, userdata: u.userdata})
			}
		}
	}
	j.close()
}

func TestDamagedJournal(t *testing.T) {
	for name, off := range map[string]int64{"format": journalOffFormat, "length": journalOffRingLen, "slots": journalOffSlots, "taken": journalOffTaken, "posted": journalOffPosted, "position": journalHead + slotOffPos, "index": journalHead + slotOffIndex} {
		path, layout, j := journalOf(t, []int{1, 2, 3}, nil)
		j.close()
		tamper(t, path, off, 1<<63+2)
		if j, all, err := openJournal(path, layout, quota.New(1<<30), 0); err == nil {
			j.close()
			t.Errorf("%s damaged, and %d requests are believed", name, len(all))
		}
	}
	path, layout, j := journalOf(t, nil, nil)
	j.close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openJournal(path, layout, quota.New(1<<30), 0); err == nil {
		t.Error("a journal that was cut is believed")
	}
}

func FuzzKeptRegistration(f *testing.F) {
	f.Add(uint32(keptVersion), []byte(`{"Name":"M2ZhODVmNjQtNTcxNy00NTYyLWIzZmMtMmM5NjNmNjZhZmE2","Target":"L2Rldi9zaG0veA==","UID":0,"GID":0,"Groups":[1],"GroupsKnown":true,"PID":1,"Owner":{"TGID":1,"Start":2},"Index":3,"Order":1,"Bytes":4096,"Object":{"Dev":1,"Ino":2,"BirthSec":3,"BirthNsec":4,"HandleType":1,"Handle":"AAAA"}}`))
	f.Fuzz(func(t *testing.T, version uint32, text []byte) {
		k, link, err := decodeRegistration(version, text)
		if err != nil {
			return
		}
		if k.Index < 0 || k.Index >= wire.MaxIovs || k.Bytes <= 0 || link.BlockBytes > k.Bytes || filepath.Dir(string(k.Target)) != shm.Dir {
			t.Errorf("accepted: %+v", k)
		}
		again, err := k.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decodeRegistration(keptVersion, again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}

func FuzzKeptSemaphores(f *testing.F) {
	const id = "01234567-0123-0123-0123-0123456789ab"
	f.Add(uint32(keptVersion), []byte(`["`+SemPrefix+id+`","`+SemPrefix+id+`","`+SemPrefix+id+`"]`))
	f.Fuzz(func(t *testing.T, version uint32, text []byte) {
		names, err := decodeSemaphores(version, text, id[:len(newRunName())])
		for _, name := range names {
			if err == nil && (!strings.HasPrefix(name, SemPrefix) || strings.Contains(name, "/")) {
				t.Errorf("%q", names)
			}
		}
		if _, err := decodeHandle(version, text); err == nil && len(text) == 0 {
			t.Error("nothing is a handle")
		}
		if run, err := decodeRun(version, text); err == nil && len(run) != len(newRunName()) {
			t.Errorf("%q", run)
		}
	})
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte{0, 1, 2}, int64(journalOffTaken), uint64(9))
	dir, err := os.MkdirTemp(shm.Dir, "kv3fs-journal-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	f.Fuzz(func(t *testing.T, slots []byte, off int64, word uint64) {
		path, layout := filepath.Join(dir, wire.NewUUID().String()), layoutOfTest()
		defer os.Remove(path)
		j, err := newJournal(path, layout, 0, 0, quota.New(1<<30), 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range slots[:min(len(slots), slotBytes*adoptedEntries)] {
			j.m.CopyIn(journalHead+int64(i), []byte{b})
		}
		if off >= 0 && off < j.m.Len()-8 && off%8 == 0 {
			j.m.StoreUint64(off, word)
		}
		j.close()
		j, all, err := openJournal(path, layout, quota.New(1<<30), 0)
		if err != nil {
			return
		}
		defer j.close()
		if len(all)+len(j.free) != journalSlots(layout) {
			t.Errorf("%d in flight and %d free of %d", len(all), len(j.free), journalSlots(layout))
		}
		for _, u := range all {
			if u.badIndex == layout.Valid(u.index) {
				t.Errorf("%+v", u)
			}
		}
		if sqeTail, cqeHead := j.markers(layout); !layout.Valid(sqeTail) || !layout.Valid(cqeHead) {
			t.Errorf("markers %d, %d", sqeTail, cqeHead)
		}
	})
}

// Whatever a client does to its ring's memory while there is no daemon, the next one serves the others, and touches nothing of theirs.
func TestRingsWordsChangeBetweenDaemons(t *testing.T) {
	l := newLineage(t)
	rng := rand.New(rand.NewPCG(seed.New(t), 0))
	l.begin(true)
	good, quiet := l.ring(), l.ring()
	layout := layoutOfTest()
	rounds := 10
	if os.Getenv("KV3FS_SOAK") != "" {
		rounds = 1600
	}
	const spoilt, words = 4, 16
	before := make([]byte, quiet.mem.Len())
	for round := range int32(rounds) {
		var all [spoilt]member
		for i := range all {
			all[i] = l.ring()
		}
		s := l.next(func() {
			quiet.mem.CopyOut(before, 0)
			for _, m := range all {
				for range words {
					off := 4 * rng.Int64N(m.mem.Len()/4)
					if rng.IntN(2) == 0 { // the markers
						off = 4 * rng.Int64N(4)
					}
					word := uint32(rng.Uint64())
					if rng.IntN(2) == 0 { // of a possible size
						word %= 2 * adoptedEntries
					}
					m.mem.StoreInt32(off, int32(word))
				}
			}
		})
		good.mem.StoreInt32(layout.PingOff(), round+1)
		for end := time.Now().Add(time.Minute); good.mem.LoadInt32(layout.PongOff()) != round+1; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("round %d: a ring beside them is not served\n%s", round, l.log.String())
			}
		}
		out := make([]byte, len(before))
		quiet.mem.CopyOut(out, 0)
		for i := range out {
			woken := int64(i) >= layout.SemOff() && int64(i) < layout.SemOff()+32 // a waiter is woken after each restart
			if out[i] != before[i] && !woken {
				t.Fatalf("round %d: byte %d of a ring that nobody uses is %#x, and was %#x", round, i, out[i], before[i])
			}
		}
		for _, m := range all {
			if err := s.Unregister(me, m.name); err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Fatal(err)
			}
		}
	}
}
