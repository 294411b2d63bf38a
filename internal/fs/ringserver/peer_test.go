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
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// dirFiles lends the files of a directory by their inode numbers, all to
// everybody. What the real tree does is tested with real mounts.
type dirFiles struct {
	mu    sync.Mutex
	files map[uint64]*os.File
}

type dirFile struct{ f *os.File }

func (s dirFile) FD() int               { return int(s.f.Fd()) }
func (s dirFile) DirectFD() (int, bool) { return -1, false }
func (s dirFile) OnDataDevice() bool    { return true }
func (s dirFile) Written()              {}
func (s dirFile) Release()              {}

func (s *dirFiles) Acquire(ino uint64, _ cred.Caller, _ bool) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[ino]
	if f == nil {
		return nil, syscall.EBADF
	}
	return dirFile{f}, nil
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
	s.files[ino] = f
	return ino
}

// nobodyReadonly is the setting of a server whose users may all write.
func nobodyReadonly(uint32) bool { return false }

var me = cred.Caller{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: uint32(os.Getpid())}

// serve runs a server for the test's duration.
func serve(t testing.TB, o Options) (*Server, *dirFiles) {
	t.Helper()
	files := &dirFiles{files: map[uint64]*os.File{}}
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
	})
	return s, files
}

// peer is a client made of nothing but bytes, so that it can be as wrong as a
// test wants.
type peer struct {
	t       testing.TB
	name    string
	m       *shm.Mapping
	layout  wire.Layout
	poller  *poller
	sqeHead int32
	cqeTail int32
}

// object makes a shared memory object and registers it under uuid+suffix.
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
	return &peer{t: t, name: name, m: m, layout: layout, poller: s.poller(link.Priority)}
}

// prep publishes a request in argument slot index.
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

func (p *peer) submit() { p.poller.sem.Post() }

// reap waits for n completions, or for timeout.
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

// fileWith makes a file and lends it.
func fileWith(t testing.TB, files *dirFiles, content []byte) uint64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return files.add(t, path, os.O_RDWR)
}
