package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestAnonymous(t *testing.T) {
	m, err := Anonymous(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	m.StoreUint64(8, 1<<63|2)
	m.OrUint64(8, 4)
	m.AndUint64(8, ^uint64(2))
	if got := m.LoadUint64(8); got != 1<<63|4 {
		t.Errorf("the word is %#x", got)
	}
	if _, err := Anonymous(0); err == nil {
		t.Error("Anonymous(0) succeeded")
	}
}

// A severed mapping is ordinary memory, even after the object has shrunk.
func TestSeverEndsFaults(t *testing.T) {
	m := object(t, 2*4096)
	defer m.Unmap()
	m.StoreUint64(4096, 7)
	if err := m.Sever(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(m.fd, 0); err != nil {
		t.Fatal(err)
	}
	if err := Guard(func() { m.OrUint64(4096, 1) }); err != nil || m.LoadUint64(4096) != 1 {
		t.Errorf("%v, word %d", err, m.LoadUint64(4096))
	}
}
