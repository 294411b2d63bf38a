// Package memory makes memory that a block store can fill and read without a copy:
// shared memory outside Go's heap, for kvstore.Store.Register.
//
//	mem, err := memory.New(64 << 30)
//	err = store.Register(mem.Name(), mem.Bytes())
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
// It differs from the prefix of 3FS's own buffers: some engines delete the buffers of
// others after five minutes, and a store needs the name again for each new daemon.
// `kv3fs doctor --fix` removes what a killed process leaves behind. It asks the kernel,
// by a lease, whether any process has the object open; a Memory keeps it open until
// Close.
const NamePrefix = "kv3fs-mem-"

// Memory is an object in /dev/shm and its mapping.
type Memory struct {
	name  string
	bytes []byte
	mem   *shm.Mapping
	once  sync.Once
}

// New makes an object of sizeBytes zero bytes. It allocates all of them now, so that a
// full /dev/shm is an error here, ENOSPC, and does not crash the program later. That
// takes about a second for every few gigabytes.
func New(sizeBytes int64) (*Memory, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("kvstore: shared memory of %d bytes: %w", sizeBytes, syscall.EINVAL)
	}
	if free, err := shm.FreeBytes(); err == nil && sizeBytes > free {
		return nil, noSpace(sizeBytes, free)
	}
	name := NamePrefix + wire.NewUUID().String()
	mem, err := shm.Create(name, sizeBytes, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kvstore: %w", err)
	}
	m := &Memory{name: name, bytes: mem.Bytes(), mem: mem}
	if err := mem.Reserve(); err != nil {
		_ = m.Close() // err is the first error
		if free, e := shm.FreeBytes(); err == syscall.ENOSPC && e == nil {
			return nil, noSpace(sizeBytes, free)
		}
		return nil, fmt.Errorf("kvstore: shared memory of %d bytes: %w", sizeBytes, err)
	}
	return m, nil
}

func noSpace(sizeBytes, freeBytes int64) error {
	return fmt.Errorf("kvstore: shared memory of %d bytes: %s has %d bytes left; make it larger (in a container, its shm size) or ask for less: %w",
		sizeBytes, shm.Dir, freeBytes, syscall.ENOSPC)
}

// Name returns the name of the object below /dev/shm. Only its owner can open it.
func (m *Memory) Name() string { return m.name }

// Bytes returns the memory itself, valid until Close: accessing it later crashes the
// program.
func (m *Memory) Bytes() []byte { return m.bytes }

// Close removes the name and unmaps the memory. Close stores that it was registered with
// before: what a daemon still writes then goes into the object, which no process uses any
// more. Closing twice is harmless.
func (m *Memory) Close() (err error) {
	m.once.Do(func() {
		err = shm.Remove(m.name)
		m.mem.Unmap()
		m.bytes = nil
	})
	return err
}
