package ringserver

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// dirFiles lends files by their inode numbers to every caller. The real tree is tested
// with real mounts.
type dirFiles struct {
	mu    sync.Mutex
	files map[uint64]*os.File
	names map[uint64]string
	rooms map[uint64]*room
	after []func() // called when the files are closed
}

type dirFile struct {
	f    *os.File
	dir  string
	room *room // nil: without a limit
}

func (s dirFile) FD() int               { return int(s.f.Fd()) }
func (s dirFile) DirectFD() (int, bool) { return -1, false }
func (s dirFile) OnDataDevice() bool    { return true }
func (s dirFile) Confine(int64) bool    { return false }
func (s dirFile) Written()              {}
func (s dirFile) Release()              {}
func (s dirFile) Directory() string     { return s.dir }
func (s dirFile) HasRead()              {}
func (s dirFile) ReadFromStart(uint32)  {}
func (s dirFile) Opened() uint64        { return 0 }

func (s dirFile) Renew(uint64, error) bool { return false }

func (s dirFile) Sums() *integrity.File    { return nil }
func (s dirFile) Damaged(integrity.Damage) {}

func newDirFiles() *dirFiles {
	return &dirFiles{files: map[uint64]*os.File{}, names: map[uint64]string{}}
}

func (s *dirFiles) Acquire(ino uint64, _ cred.Caller, _ bool) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[ino]
	if f == nil {
		return nil, syscall.EBADF
	}
	return dirFile{f, filepath.Dir(s.names[ino]), s.rooms[ino]}, nil
}

func (s *dirFiles) Path(ino uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[ino]
}

func (s *dirFiles) add(t testing.TB, path string, flags int) uint64 {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	ino := fi.Sys().(*syscall.Stat_t).Ino
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[ino], s.names[ino] = f, path
	return ino
}

// nobodyReadonly is the setting under which every user may write.
func nobodyReadonly(uint32) bool { return false }

var me = cred.Caller{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: uint32(os.Getpid())}

// serve runs a server until the test ends.
func serve(t testing.TB, o Options) (*Server, *dirFiles) {
	t.Helper()
	files := newDirFiles()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s, err := New(files, nobodyReadonly, blockio.Mover{}, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		s.Close()
		for _, f := range files.files {
			f.Close()
		}
		for _, after := range files.after {
			after()
		}
	})
	return s, files
}

// peer is a client that writes raw bytes, so that a test can make it break any rule.
type peer struct {
	t       testing.TB
	name    string
	m       *shm.Mapping
	layout  wire.Layout
	sem     *shm.NamedSem // of its user
	sqeHead int32
	cqeTail int32
}

// object creates a shared memory object and registers it as uuid+suffix.
func object(t testing.TB, s *Server, sizeBytes int64, suffix string) (*shm.Mapping, wire.UUID, string, error) {
	t.Helper()
	file := "kv3fs-test-" + wire.NewUUID().String()
	m, err := shm.Create(file, sizeBytes, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Unmap)
	defer shm.Remove(file)
	id := wire.NewUUID()
	_, err = s.Register(me, id.String()+suffix, filepath.Join(shm.Dir, file))
	return m, id, id.String() + suffix, err
}

func newPeer(t testing.TB, s *Server, entries int, suffix string) *peer {
	t.Helper()
	size := wire.RingBytes(entries)
	m, _, name, err := object(t, s, size, suffix)
	if err != nil {
		t.Fatal(err)
	}
	link, _ := wire.ParseLink(name)
	layout, _ := wire.LayoutOf(size)
	return &peer{t: t, name: name, m: m, layout: layout, sem: submitSemOf(t, s, me.UID, link.Priority)}
}

// submitSemOf opens a user's submit semaphore as a client does.
func submitSemOf(t testing.TB, s *Server, uid uint32, p wire.Priority) *shm.NamedSem {
	t.Helper()
	path, err := s.SubmitLink(cred.Caller{UID: uid, GID: uid, PID: uint32(os.Getpid())}, p)
	if err != nil {
		t.Fatal(err)
	}
	return openSem(t, path)
}

// prep fills argument slot index and publishes its submission entry.
func (p *peer) prep(index int32, a wire.Args) {
	var args [wire.ArgsBytes]byte
	a.Encode(&args)
	if p.layout.Valid(index) {
		p.m.CopyIn(p.layout.ArgsOff(index), args[:])
	}
	var sqe [wire.SqeBytes]byte
	s := wire.Sqe{Index: index, Userdata: a.Userdata}
	s.Encode(&sqe)
	p.m.CopyIn(p.layout.SqeOff(p.sqeHead), sqe[:])
	p.sqeHead = p.layout.Next(p.sqeHead)
	p.m.StoreInt32(wire.OffSqeHead, p.sqeHead)
}

func (p *peer) submit() { p.sem.Post() }

// reap collects completions until it has n or timeout has passed.
func (p *peer) reap(n int, timeout time.Duration) []wire.Cqe {
	var got []wire.Cqe
	for end := time.Now().Add(timeout); ; {
		for head := p.m.LoadInt32(wire.OffCqeHead); p.cqeTail != head; {
			var b [wire.CqeBytes]byte
			p.m.CopyOut(b[:], p.layout.CqeOff(p.cqeTail))
			var c wire.Cqe
			c.Decode(&b)
			got = append(got, c)
			p.cqeTail = p.layout.Next(p.cqeTail)
			p.m.StoreInt32(wire.OffCqeTail, p.cqeTail)
		}
		left := time.Until(end)
		if len(got) >= n || left <= 0 {
			if len(got) > 0 {
				p.submit()
			}
			return got
		}
		sem := p.m.Sem(p.layout.SemOff())
		sem.Wait(min(left, time.Millisecond))
		sem.TakeAll()
	}
}

// one submits a request and returns its result.
func (p *peer) one(a wire.Args) int64 {
	p.t.Helper()
	p.prep(0, a)
	p.submit()
	got := p.reap(1, 10*time.Second)
	if len(got) != 1 {
		p.t.Fatalf("%d completions for one request", len(got))
	}
	return got[0].Result
}

// fileWith creates a file with content and adds it to files.
func fileWith(t testing.TB, files *dirFiles, content []byte) uint64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return files.add(t, path, os.O_RDWR)
}
