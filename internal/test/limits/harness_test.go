package limits

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestMain(m *testing.M) { os.Exit(hostile.Main(m, programs())) }

// programs returns what other users may run. Each file of this package that has some adds a
// line with its own table.
func programs() map[string]hostile.Program {
	all := map[string]hostile.Program{}
	for _, of := range []map[string]hostile.Program{
		harnessPrograms(),
		registerPrograms(),
		ringPrograms(),
		unseenPrograms(),
		semPrograms(),
		mountPrograms(),
		pagesPrograms(),
		restartPrograms(),
	} {
		maps.Copy(all, of)
	}
	return all
}

func harnessPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"identity": identity, "read": readProgram, "fail": failProgram, "raw-read": rawRead, "read-disk": readDisk}
}

// serve starts a daemon for a hostile test, as root. With -short the test is skipped.
func serve(t *testing.T, flags ...string) *daemontest.Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	daemontest.NeedRoot(t)
	return daemontest.Serve(t, flags...)
}

// newFile writes a file of a user's own into the data directory and returns its path on the
// mount. Byte i is byte(i*step).
func newFile(t *testing.T, d *daemontest.Daemon, u hostile.User, sizeBytes int, step byte) string {
	t.Helper()
	name := "file-" + wire.NewUUID().String()
	content := make([]byte, sizeBytes)
	for i := range content {
		content[i] = byte(i) * step
	}
	path := filepath.Join(d.Data, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, int(u.ID), int(u.ID)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(d.Mount, name)
}

// reads asks a client to read a file of newFile through a ring, again and again.
type reads struct {
	Path      string
	Step      byte
	Bytes     int64         // of each read
	Depth     int           // reads at a time
	Count     int           // batches; 0: until it is stopped
	Limit     time.Duration // for one batch
	PauseTime time.Duration // between batches
}

// readResult is what a client met.
type readResult struct {
	Batches int
	Errors  []string
	Wrong   int // reads with a wrong byte
	Longest time.Duration
}

func readProgram(s *hostile.Self) error {
	var a reads
	if err := s.Args(&a); err != nil {
		return err
	}
	if a.Count == 0 {
		if err := s.Report("ready"); err != nil {
			return err
		}
	}
	got, err := a.run(s)
	if err != nil {
		return err
	}
	return s.Report(got)
}

// run connects as any client does and reads.
func (a reads) run(s *hostile.Self) (got readResult, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hostile.Patience)
	defer cancel()
	m, err := usrbio.Open(ctx, a.Path)
	if err != nil {
		return got, err
	}
	defer m.Close(context.Background())
	v, err := m.NewIov(ctx, int64(a.Depth)*a.Bytes, usrbio.IovOptions{})
	if err != nil {
		return got, err
	}
	r, err := m.NewRing(ctx, usrbio.RingOptions{Entries: a.Depth})
	if err != nil {
		return got, err
	}
	o, err := os.Open(a.Path)
	if err != nil {
		return got, err
	}
	defer o.Close()
	f, err := m.Register(ctx, o)
	if err != nil {
		return got, err
	}
	for n := 0; (a.Count == 0 || n < a.Count) && s.Running(); n++ {
		a.batch(r, v, f, &got)
		time.Sleep(a.PauseTime)
	}
	return got, nil
}

// batch reads Depth pieces at once and checks every byte.
func (a reads) batch(r *usrbio.Ring, v *usrbio.Iov, f *usrbio.File, got *readResult) {
	ctx, cancel := context.WithTimeout(context.Background(), a.Limit)
	defer cancel()
	batch := make([]usrbio.Request, a.Depth)
	for i := range batch {
		batch[i] = usrbio.Request{File: f, FileOffset: int64(i) * a.Bytes, Iov: v, IovOffset: int64(i) * a.Bytes, Bytes: a.Bytes}
	}
	clear(v.Bytes())
	began := time.Now()
	err := r.Do(ctx, batch)
	got.Longest = max(got.Longest, time.Since(began))
	got.Batches++
	for i := range batch {
		if e := batch[i].Err(); e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		got.Errors = append(got.Errors, err.Error())
		return
	}
	for i, b := range v.Bytes() {
		if b != byte(i)*a.Step {
			got.Wrong++
			return
		}
	}
}

// read has u read a file of its own and fails the test if a read fails or has a wrong byte.
func read(t *testing.T, d *daemontest.Daemon, u hostile.User, count int, limit time.Duration) readResult {
	t.Helper()
	a := reads{Path: newFile(t, d, u, 8*128<<10, 3), Step: 3, Bytes: 128 << 10, Depth: 8, Count: count, Limit: limit}
	var got readResult
	hostile.Run(t, u, "read", a, &got)
	got.check(t, "an honest client")
	return got
}

func (got readResult) check(t *testing.T, who string) {
	t.Helper()
	if len(got.Errors) > 0 || got.Wrong > 0 || got.Batches == 0 {
		t.Errorf("%s: %d batches, %d wrong, %d errors: %.5q", who, got.Batches, got.Wrong, len(got.Errors), got.Errors)
	}
}

func identity(s *hostile.Self) error {
	if err := s.Report([]int{os.Getuid(), os.Geteuid(), os.Getgid()}); err != nil {
		return err
	}
	if path, err := hostile.NewObject(4096); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	<-s.Stopped()
	return nil
}

func readDisk(s *hostile.Self) error {
	var path string
	if err := s.Args(&path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 4096))
	if err != nil {
		return err
	}
	return s.Report(n)
}

func failProgram(*hostile.Self) error { return unix.EXDEV }

func rawRead(s *hostile.Self) error {
	var a reads
	if err := s.Args(&a); err != nil {
		return err
	}
	mount, err := usrbio.FindMount(context.Background(), a.Path)
	if err != nil {
		return err
	}
	f, err := os.Open(a.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	r, err := hostile.NewRing(mount, 4, ".r0.t0")
	if err != nil {
		return err
	}
	defer r.Close()
	id, mem, err := hostile.NewIov(mount, a.Bytes)
	if err != nil {
		return err
	}
	defer mem.Unmap()
	r.Push(2, wire.Args{BufID: id, FileIno: st.Ino, Len: uint64(a.Bytes), Userdata: 7})
	r.Post()
	return s.Report(r.Reap(1, hostile.Patience))
}

// The harness itself: another user reads through a ring, and nothing of it stays.
func TestHarness(t *testing.T) {
	d := serve(t)
	u := hostile.NewUser(t)
	read(t, d, u, 3, hostile.Patience)

	var cqes []wire.Cqe
	hostile.Run(t, u, "raw-read", reads{Path: newFile(t, d, u, 5000, 1), Bytes: 8192}, &cqes)
	if len(cqes) != 1 || cqes[0].Index != 2 || cqes[0].Result != 5000 || cqes[0].Userdata != 7 {
		t.Errorf("raw ring: %+v", cqes)
	}

	p := hostile.Start(t, u, "identity", nil)
	var ids []uint32
	p.Await(&ids)
	if ids[0] != u.ID || ids[1] != u.ID || ids[2] != u.ID {
		t.Errorf("it runs as %v, not as %d", ids, u.ID)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if left := strings.Join(hostile.Objects(u.ID), " "); strings.Count(left, "kv3fs-hostile-") != 1 {
		t.Errorf("objects of the user: %s; want one that the program made", left)
	}
	p = hostile.Start(t, u, "fail", nil)
	var never int
	if err := p.Next(&never, hostile.Patience); err == nil {
		t.Error("a program that ends reported something")
	}
	if err := p.Stop(); err == nil {
		t.Error("a program that fails has no error")
	}
}

// A disk of the harness hangs and comes back, as every user sees it through the mount.
func TestHarnessDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	data := hostile.NewData(t)
	disk := hostile.NewDisk(t, data, 2)
	d := daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: []string{"--drain", "1s"}})
	u := hostile.NewUser(t)
	disk.Hang()
	p := hostile.Start(t, u, "read-disk", filepath.Join(d.Mount, "disk", "f1"))
	t.Cleanup(disk.Release)
	var n int
	select {
	case <-disk.Hanging():
	case <-time.After(hostile.Patience):
		t.Fatal("nothing hangs")
	}
	if err := p.Next(&n, 0); err == nil {
		t.Error("the read returned")
	}
	disk.Release()
	if p.Await(&n); n != 4096 {
		t.Errorf("%d bytes", n)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
