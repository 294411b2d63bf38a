// Package memory makes the memory that a block store fills and reads without a copy
// of its own: shared memory outside Go's heap, for kv.Registrar.
//
//	mem, err := memory.New(64 << 30)
//	err = store.(kv.Registrar).Register(mem.Name(), mem.Bytes())
//	task, err := store.Load(ctx, shards) // whose buffers are slices of mem.Bytes()
package memory

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// NamePrefix begins the name of every object.
//
// It is not that of 3FS's own buffers: some engines delete those of others after five
// minutes, and a store needs the name whenever it meets a new daemon. What a killed
// process leaves behind `kv3fs doctor --fix` takes away: it asks the kernel, by a lease,
// whether any process has the object open, and a Memory has until Close.
const NamePrefix = "kv3fs-mem-"

// Memory is an object in /dev/shm and its mapping.
type Memory struct {
	name  string
	bytes []byte
	mem   *shm.Mapping
	once  sync.Once
}

// New makes an object of sizeBytes zero bytes. All of it is taken now, so that a
// full /dev/shm is an error here, ENOSPC, and not the end of the program later; that
// takes about a second for every few gigabytes.
func New(sizeBytes int64) (*Memory, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("kvstore: shared memory of %d bytes: %w", sizeBytes, syscall.EINVAL)
	}
	if free, err := shm.FreeBytes(); err == nil && sizeBytes > free {
		return nil, noRoom(sizeBytes, free)
	}
	name := NamePrefix + wire.NewUUID().String()
	mem, err := shm.Create(name, sizeBytes, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kvstore: %w", err)
	}
	m := &Memory{name: name, bytes: mem.Bytes(), mem: mem}
	if err := mem.Reserve(); err != nil {
		m.Close()
		if free, e := shm.FreeBytes(); err == syscall.ENOSPC && e == nil {
			return nil, noRoom(sizeBytes, free)
		}
		return nil, fmt.Errorf("kvstore: shared memory of %d bytes: %w", sizeBytes, err)
	}
	return m, nil
}

func noRoom(sizeBytes, freeBytes int64) error {
	return fmt.Errorf("kvstore: shared memory of %d bytes: %s has %d bytes left; make it larger (in a container, its shm size) or ask for less: %w",
		sizeBytes, shm.Dir, freeBytes, syscall.ENOSPC)
}

// Name is the object's name below /dev/shm. Its owner alone can open it.
func (m *Memory) Name() string { return m.name }

// Bytes is the memory itself, valid until Close: touching it later crashes the
// program.
func (m *Memory) Bytes() []byte { return m.bytes }

// Close takes the name away and unmaps. Stores that the memory was registered with are
// closed before it; what a daemon still writes after that, it writes into the object,
// which nobody has any more. Closing twice is harmless.
func (m *Memory) Close() (err error) {
	m.once.Do(func() {
		err = shm.Remove(m.name)
		m.mem.Unmap()
		m.bytes = nil
	})
	return err
}
