package memory_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

func TestMemoryIsTheObject(t *testing.T) {
	m, err := memory.New(100_000)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(shm.Dir, m.Name())
	info, err := os.Stat(path)
	if err != nil || info.Size() != 100_000 || info.Mode().Perm() != 0o600 {
		t.Fatalf("%+v, %v", info, err)
	}
	if blocks := info.Sys().(*syscall.Stat_t).Blocks * 512; blocks < 100_000 {
		t.Errorf("only %d bytes of it are taken", blocks)
	}
	if len(m.Bytes()) != 100_000 {
		t.Fatalf("%d bytes", len(m.Bytes()))
	}
	m.Bytes()[99_999] = 7
	content, err := os.ReadFile(path)
	if err != nil || content[99_999] != 7 || content[0] != 0 {
		t.Errorf("the object does not hold what was written: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the name is still there: %v", err)
	}
}

func TestNamesAreUnique(t *testing.T) {
	a, err := memory.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := memory.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Name() == b.Name() || !strings.HasPrefix(a.Name(), memory.NamePrefix) {
		t.Errorf("%s and %s", a.Name(), b.Name())
	}
}

func TestInvalidSizes(t *testing.T) {
	free, err := shm.FreeBytes()
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]error{0: syscall.EINVAL, -1: syscall.EINVAL, free + 1<<40: syscall.ENOSPC} {
		if m, err := memory.New(size); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, %v, want %v", size, m, err, want)
		}
	}
}
