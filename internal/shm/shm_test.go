package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// object creates and maps an object whose name is removed when the test ends.
func object(t *testing.T, sizeBytes int64) *Mapping {
	t.Helper()
	name := "kv3fs-test-" + wire.NewUUID().String()
	m, err := Create(name, sizeBytes, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Remove(name) })
	return m
}

// Case 26: a freshly initialised semaphore has value 0 and 0x80 at +8.
func TestSemLayout(t *testing.T) {
	m := object(t, 4096)
	defer m.Unmap()
	m.CopyIn(0, bytes.Repeat([]byte{0xff}, semBytes))
	m.Sem(0).Init()
	var b [semBytes]byte
	m.CopyOut(b[:], 0)
	if v := binary.LittleEndian.Uint64(b[:]); v != 0 {
		t.Errorf("value and waiters: %#x, want 0", v)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != 0x80 {
		t.Errorf("shared mark: %#x, want 0x80", v)
	}
	m.Sem(0).Post()
	m.Sem(0).Post()
	m.CopyOut(b[:], 0)
	if v := binary.LittleEndian.Uint64(b[:]); v != 2 {
		t.Errorf("after two posts: %#x, want 2", v)
	}
	if !m.Sem(0).takeOne() || !m.Sem(0).TakeAll() || m.Sem(0).TakeAll() || m.Sem(0).takeOne() {
		t.Error("a value of 2 was not taken by one takeOne and one TakeAll")
	}
}

// takeOne decrements a value above 0, without waiting, and reports whether it did.
func (s Sem) takeOne() bool {
	for {
		d := atomic.LoadUint64(&s.s.valueAndWaiters)
		if uint32(d) == 0 {
			return false
		}
		if atomic.CompareAndSwapUint64(&s.s.valueAndWaiters, d, d-1) {
			return true
		}
	}
}

func TestSemWakesWaiter(t *testing.T) {
	m := object(t, 4096)
	defer m.Unmap()
	other, err := m.Remap()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Unmap()
	m.Sem(0).Init()
	for range 200 {
		var wg sync.WaitGroup
		wg.Go(func() {
			for !m.Sem(0).takeOne() {
				m.Sem(0).Wait(10 * time.Second)
			}
		})
		other.Sem(0).Post()
		wg.Wait()
	}
	start := time.Now()
	m.Sem(0).Wait(time.Millisecond)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("a wait of 1 ms took %v", d)
	}
	var b [8]byte
	if m.CopyOut(b[:], 0); binary.LittleEndian.Uint64(b[:]) != 0 {
		t.Errorf("waiters left behind: % x", b)
	}
}

// A peer may write anything into the word: nothing hangs and no count goes negative.
func TestSemScribbled(t *testing.T) {
	m := object(t, 4096)
	defer m.Unmap()
	for _, word := range []uint64{^uint64(0), 1 << 63, 0xffffffff, 1 << 32} {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], word)
		m.CopyIn(0, b[:])
		m.Sem(0).Post()
		m.Sem(0).Wait(time.Millisecond)
		m.Sem(0).TakeAll()
	}
}

func TestGuardTurnsShrinkingIntoError(t *testing.T) {
	m := object(t, 3*4096)
	defer m.Unmap()
	m.StoreInt32(8192, 7)
	if err := unix.Ftruncate(m.fd, 4096); err != nil {
		t.Fatal(err)
	}
	reached := false
	err := Guard(func() {
		m.LoadInt32(0)
		m.LoadInt32(8192)
		reached = true
	})
	if !errors.Is(err, ErrFault) || reached {
		t.Fatalf("access beyond the shrunken object: err %v, fn went on: %v", err, reached)
	}
	if err := Guard(func() { m.Sem(8192).Post() }); !errors.Is(err, ErrFault) {
		t.Errorf("semaphore beyond the end: %v", err)
	}
	if err := Guard(func() { m.CopyOut(make([]byte, 64), 4090) }); !errors.Is(err, ErrFault) {
		t.Errorf("copy across the end: %v", err)
	}
	if n, err := m.Window(8192, 100).Pread(m.fd, 0); n > 0 || !errors.Is(err, unix.EFAULT) {
		t.Errorf("system call into the missing page: %d, %v, want EFAULT", n, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Guard swallowed a panic that was not a fault")
		}
	}()
	Guard(func() { panic("mine") })
}

func TestDetachLeavesObjectAlone(t *testing.T) {
	m := object(t, 8*4096)
	defer m.Unmap()
	m.CopyIn(0, bytes.Repeat([]byte{'a'}, 8*4096))
	w := m.Window(4096+100, 4096).b
	if err := m.Detach(4096+100, 4096); err != nil {
		t.Fatal(err)
	}
	if w[0] != 'a' || w[4095] != 'a' {
		t.Error("a detached window lost the bytes it had")
	}
	for i := range w {
		w[i] = 'b' // the late transfer
	}
	got, err := os.ReadFile("/proc/self/fd/" + strconv.Itoa(m.fd))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{'a'}, 8*4096)) {
		t.Error("the object changed through a detached window")
	}
	m.CopyIn(0, []byte{'c'})
	m.CopyIn(7*4096, []byte{'c'})
	fresh, err := m.Remap()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Unmap()
	var b [1]byte
	for _, off := range []int64{0, 7 * 4096} {
		if fresh.CopyOut(b[:], off); b[0] != 'c' {
			t.Errorf("byte %d, outside the detached pages, was detached, too", off)
		}
	}
}

func TestPunchTakesWholePagesOnly(t *testing.T) {
	m := object(t, 4*4096)
	defer m.Unmap()
	m.CopyIn(0, bytes.Repeat([]byte{'a'}, 4*4096))
	if err := m.Punch(100, 3*4096); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4*4096)
	m.CopyOut(got, 0)
	want := bytes.Repeat([]byte{'a'}, 4*4096)
	clear(want[4096 : 3*4096])
	if !bytes.Equal(got, want) {
		t.Error("punching [100, 12388) did not clear exactly the pages at 4096 and 8192")
	}
}

func TestNamedSem(t *testing.T) {
	old := unix.Umask(0o077)
	s, err := CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(true)
	fi, err := os.Stat(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 || fi.Size() != 32 {
		t.Errorf("semaphore object: mode %v, %d bytes, want 0600 and 32", fi.Mode(), fi.Size())
	}
	client, err := OpenSem(s.name)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(false)
	client.Post()
	if !s.TakeAll() {
		t.Error("a post through the name did not arrive")
	}
	if err := os.Truncate(s.Path(), 0); err != nil {
		t.Fatal(err)
	}
	if err := Guard(func() { s.TakeAll() }); !errors.Is(err, ErrFault) {
		t.Errorf("shrunken semaphore: %v", err)
	}
	if err := s.Repair(); err != nil {
		t.Fatal(err)
	}
	client.Post()
	if !s.TakeAll() {
		t.Error("a repaired semaphore does not work")
	}
}
