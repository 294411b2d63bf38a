package usrbio

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// peer plays the daemon: it is a registrar, and it serves the rings from its own
// mappings of them. Files are byte slices by inode number.
type peer struct {
	sem map[string]*shm.NamedSem // by link name

	// execute handles a request; nil: it moves bytes between iov and file.
	execute func(w bool, a wire.Args) int64

	gone    atomic.Bool // every call of the registrar returns ENOTCONN
	hang    atomic.Bool // readlink does not answer
	mute    atomic.Bool // completions are written and not posted
	stalled atomic.Bool // nothing is served
	reverse atomic.Bool // completions of a batch in reverse order

	mu     sync.Mutex
	target map[string]string // registered links
	rings  map[string]*peerRing
	iovs   map[wire.UUID]*shm.Mapping
	files  map[uint64][]byte

	quit chan struct{}
	wg   sync.WaitGroup
}

type peerRing struct {
	wire.Link
	wire.Layout
	mem              *shm.Mapping
	sqeTail, cqeHead int32
}

func newPeer(t testing.TB) *peer {
	p := &peer{
		sem:    map[string]*shm.NamedSem{},
		target: map[string]string{},
		rings:  map[string]*peerRing{},
		iovs:   map[wire.UUID]*shm.Mapping{},
		files:  map[uint64][]byte{},
		quit:   make(chan struct{}),
	}
	for _, link := range []string{"submit-ios.ph", "submit-ios", "submit-ios.pl"} {
		s, err := shm.CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
		if err != nil {
			t.Fatal(err)
		}
		p.sem[link] = s
		p.wg.Go(func() { p.serve(s) })
	}
	t.Cleanup(func() {
		close(p.quit)
		p.wg.Wait()
		for _, s := range p.sem {
			s.Close(true)
		}
		for _, r := range p.rings { // of a test whose daemon is gone
			r.mem.Unmap()
		}
		for _, mem := range p.iovs {
			mem.Unmap()
		}
		for name, target := range p.target {
			if strings.Contains(name, ".b") {
				continue
			}
			if _, err := os.Stat(target); err == nil {
				t.Errorf("%s is left behind", target)
			}
		}
	})
	return p
}

// testMount is a Mount whose daemon is a peer.
func testMount(t testing.TB) (*Mount, *peer) {
	p := newPeer(t)
	m := newMount("/test", p)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close mount: %v", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(p.target); n != 0 && !p.gone.Load() {
			t.Errorf("%d registrations left behind", n)
		}
	})
	return m, p
}

// file registers a file of the peer.
func (p *peer) file(t testing.TB, m *Mount, ino uint64, access int, content []byte) *File {
	t.Helper()
	p.mu.Lock()
	p.files[ino] = content
	p.mu.Unlock()
	fd, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := &File{m: m, ino: ino, access: access, fd: fd}
	if err := adopt(m, &m.files, f); err != nil {
		t.Fatal(err)
	}
	return f
}

// content returns a file of the peer. No request may be in flight.
func (p *peer) content(ino uint64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[ino]
}

func (p *peer) link(_ context.Context, target, name string) error {
	if p.gone.Load() {
		return syscall.ENOTCONN
	}
	l, err := wire.ParseLink(name)
	if err != nil {
		return err
	}
	mem, err := shm.Open(filepath.Base(target))
	if err != nil {
		return syscall.EINVAL
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target[name] = target
	if !l.Ring {
		p.iovs[l.ID] = mem
		return nil
	}
	layout, ok := wire.LayoutOf(mem.Len())
	if !ok || int(l.IODepth) > layout.Entries() {
		mem.Unmap()
		return syscall.EINVAL
	}
	mem.Sem(layout.SemOff()).Init()
	p.rings[name] = &peerRing{Link: l, Layout: layout, mem: mem}
	return nil
}

func (p *peer) unlinkHere(ctx context.Context, name string) error { return p.unlink(ctx, name) }

func (p *peer) unlink(_ context.Context, name string) error {
	if p.gone.Load() {
		return syscall.ENOTCONN
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.target[name]; !ok {
		return syscall.ENOENT
	}
	delete(p.target, name)
	if r := p.rings[name]; r != nil {
		delete(p.rings, name)
		r.mem.Unmap()
		return nil
	}
	l, _ := wire.ParseLink(name)
	p.iovs[l.ID].Unmap()
	delete(p.iovs, l.ID)
	return nil
}

func (p *peer) readlink(_ context.Context, name string) (string, error) {
	for p.hang.Load() {
		time.Sleep(time.Millisecond)
	}
	if p.gone.Load() {
		return "", syscall.ENOTCONN
	}
	if s := p.sem[name]; s != nil {
		return s.Path(), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if target, ok := p.target[name]; ok {
		return target, nil
	}
	return "", syscall.ENOENT
}

func (p *peer) probe(name string) error {
	_, err := p.readlink(bg, name)
	return err
}

func (p *peer) call(_ context.Context, fn func() error, _ func()) error { return fn() }

func (p *peer) finish(_ context.Context, fn func() error) error { return fn() }

func (p *peer) close(context.Context) error { return nil }

// serve drains the rings whenever its semaphore is posted.
func (p *peer) serve(s *shm.NamedSem) {
	for {
		select {
		case <-p.quit:
			return
		default:
		}
		if !s.TakeAll() {
			s.Wait(time.Millisecond)
			continue
		}
		for p.round() {
		}
	}
}

// round serves what is queued on every ring and reports whether there was anything.
func (p *peer) round() (any bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled.Load() {
		return false
	}
	for _, r := range p.rings {
		any = p.drain(r) || any
	}
	return any
}

func (p *peer) drain(r *peerRing) bool {
	var batch []wire.Cqe
	head := r.mem.LoadInt32(wire.OffSqeHead)
	if head == r.sqeTail {
		return false
	}
	for r.sqeTail != head {
		var (
			sb  [wire.SqeBytes]byte
			ab  [wire.ArgsBytes]byte
			sqe wire.Sqe
			a   wire.Args
		)
		r.mem.CopyOut(sb[:], r.SqeOff(r.sqeTail))
		sqe.Decode(&sb)
		r.mem.CopyOut(ab[:], r.ArgsOff(sqe.Index))
		a.Decode(&ab)
		r.sqeTail = r.Next(r.sqeTail)
		if p.execute != nil {
			batch = append(batch, wire.Cqe{Index: sqe.Index, Result: p.execute(r.Write, a), Userdata: sqe.Userdata})
		} else {
			batch = append(batch, wire.Cqe{Index: sqe.Index, Result: p.move(r.Write, a), Userdata: sqe.Userdata})
		}
	}
	r.mem.StoreInt32(wire.OffSqeTail, r.sqeTail)
	if p.reverse.Load() {
		for i, j := 0, len(batch)-1; i < j; i, j = i+1, j-1 {
			batch[i], batch[j] = batch[j], batch[i]
		}
	}
	for _, c := range batch {
		r.complete(c)
	}
	if !p.mute.Load() {
		r.mem.Sem(r.SemOff()).Post()
	}
	return true
}

// complete appends one completion without checking it.
func (r *peerRing) complete(c wire.Cqe) {
	var b [wire.CqeBytes]byte
	c.Encode(&b)
	r.mem.CopyIn(r.CqeOff(r.cqeHead), b[:])
	r.cqeHead = r.Next(r.cqeHead)
	r.mem.StoreInt32(wire.OffCqeHead, r.cqeHead)
}

// move executes a request as a daemon does; the caller holds mu.
func (p *peer) move(write bool, a wire.Args) int64 {
	mem, content := p.iovs[a.BufID], p.files[a.FileIno]
	switch {
	case content == nil:
		return -int64(syscall.EBADF)
	case mem == nil || a.BufOff+a.Len > uint64(mem.Len()):
		return -int64(syscall.EINVAL)
	case a.FileOff >= uint64(len(content)):
		return 0
	}
	window := mem.Bytes()[a.BufOff : a.BufOff+a.Len]
	if write {
		return int64(copy(content[a.FileOff:], window))
	}
	return int64(copy(window, content[a.FileOff:]))
}

// only returns the peer's single ring.
func (p *peer) only(t testing.TB) *peerRing {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rings {
		return r
	}
	t.Fatal("no ring is registered")
	return nil
}
