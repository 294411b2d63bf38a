// Package usagemodel is a tree.Usage for tests: it keeps totals from nothing but what it is
// told, and compares them with the disk.
package usagemodel

import (
	"cmp"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Key is tree.FileKey.
type Key = struct{ Dev, Ino uint64 }

// stateName is tree.StateName.
const stateName = ".kv3fs"

func stat(path string) (unix.Statx_t, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st)
	return st, err
}

// KeyOf returns the key of a path.
func KeyOf(t testing.TB, path string) Key {
	t.Helper()
	st, err := stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return keyOf(&st)
}

func keyOf(st *unix.Statx_t) Key {
	return Key{Dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), Ino: st.Ino}
}

// Model keeps totals from nothing but what Usage is told.
type Model struct {
	t        testing.TB
	Capacity int64 // 0: none

	mu       sync.Mutex
	files    map[Key]*file
	reserved int64
	moves    atomic.Int64 // that have not ended
}

type file struct {
	blocks, opens int64
	places        map[place]bool
	dir, gone     bool
	reads         int
}

// place is a name in a directory.
type place struct {
	dir  Key
	name string
}

func New(t testing.TB) *Model {
	return &Model{t: t, files: make(map[Key]*file)}
}

func (m *Model) Reserve(k Key, n int64, deadline time.Time, _ <-chan struct{}) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n <= 0 {
		m.t.Errorf("reserves %d bytes", n)
	}
	if m.Capacity > 0 && m.usedLocked()+m.reserved+n > m.Capacity {
		if deadline.IsZero() {
			return unix.EAGAIN
		}
		return unix.ENOSPC
	}
	m.reserved += n
	return nil
}

// Move finds room for everything: the model has one limit, within which a move changes nothing.
func (m *Model) Move(_, _ Key, _ string, _ Key, _ time.Time, _ <-chan struct{}) (end func(), err error) {
	m.moves.Add(1)
	return func() { m.moves.Add(-1) }, nil
}

func (m *Model) Settle(k Key, reserved, blocks512 int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reserved -= reserved; m.reserved < 0 {
		m.t.Error("more is settled than was reserved")
	}
	if f := m.files[k]; f != nil && blocks512 >= 0 {
		f.blocks = blocks512
	}
}

// known returns the record of k.
func (m *Model) known(k Key) *file {
	if m.files[k] == nil {
		m.files[k] = &file{places: map[place]bool{}}
	}
	return m.files[k]
}

func (m *Model) Read(k Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known(k).reads++
}

// Reads returns how often a file was used.
func (m *Model) Reads(k Key) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known(k).reads
}

func (m *Model) Opened(k, dir Key, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known(k).opens++
}

func (m *Model) Closed(k Key, blocks512 int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.known(k)
	if f.opens--; f.opens < 0 {
		m.t.Errorf("%v: closed more often than opened", k)
	}
	if blocks512 >= 0 {
		f.blocks = blocks512
	}
	m.dropLocked(k, f)
}

func (m *Model) Created(k, dir Key, name string, isDir bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.known(k)
	f.dir, f.gone = isDir, false
	f.places[place{dir, name}] = true
}

func (m *Model) Removed(k, dir Key, name string, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.known(k)
	delete(f.places, place{dir, name})
	f.gone = f.gone || last
	m.dropLocked(k, f)
}

func (m *Model) dropLocked(k Key, f *file) {
	if f.gone && f.opens == 0 {
		delete(m.files, k)
	}
}

func (m *Model) Renamed(k, from Key, oldName string, to Key, newName string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.known(k)
	if !f.places[place{from, oldName}] {
		m.t.Errorf("%v: renamed from a place where it was not: %v", k, place{from, oldName})
	}
	delete(f.places, place{from, oldName})
	f.places[place{to, newName}] = true
}

func (m *Model) SpaceOf(Key) (capacityBytes, freeBytes int64, limited bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Capacity, m.Capacity - m.usedLocked(), m.Capacity > 0
}

func (m *Model) usedLocked() (bytes int64) {
	for _, f := range m.files {
		bytes += f.blocks * 512
	}
	return bytes
}

// Taken returns what regular files and directories below dir take, each once.
func Taken(t testing.TB, dir string) map[Key]int64 {
	blocks := make(map[Key]int64)
	for k, e := range walk(t, dir) {
		blocks[k] = e.blocks
	}
	return blocks
}

// entry is an inode that walk has found.
type entry struct {
	blocks int64
	places map[place]bool
}

func walk(t testing.TB, dir string) map[Key]entry {
	all := make(map[Key]entry)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() == stateName {
			return cmp.Or(err, fs.SkipDir)
		}
		st, err := stat(path)
		if kind := st.Mode & unix.S_IFMT; err == nil && (kind == unix.S_IFREG || kind == unix.S_IFDIR) {
			e, known := all[keyOf(&st)]
			if !known {
				e = entry{int64(st.Blocks), map[place]bool{}}
			}
			if path == dir {
				e.places[place{}] = true
			} else {
				e.places[place{KeyOf(t, filepath.Dir(path)), filepath.Base(path)}] = true
			}
			all[keyOf(&st)] = e
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Check compares the model with the disk.
func (m *Model) Check(dir string) {
	m.t.Helper()
	is := walk(m.t, dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reserved != 0 {
		m.t.Errorf("%d bytes are still reserved", m.reserved)
	}
	if n := m.moves.Load(); n != 0 {
		m.t.Errorf("%d moves have not ended", n)
	}
	for k, f := range m.files {
		e, there := is[k]
		if f.opens != 0 || !there || e.blocks != f.blocks || !maps.Equal(e.places, f.places) {
			m.t.Errorf("%v: the model has %+v; there: %v, %+v", k, *f, there, e)
		}
		delete(is, k)
	}
	for k, e := range is {
		m.t.Errorf("%v: the model does not know it: %+v", k, e)
	}
}

// Used returns what all files take.
func (m *Model) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usedLocked()
}
