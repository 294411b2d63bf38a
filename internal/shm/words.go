package shm

import (
	"sync/atomic"
	"unsafe"
)

// LoadUint64 reads a word with acquire order. off must be a multiple of 8.
func (m *Mapping) LoadUint64(off int64) uint64 { return atomic.LoadUint64(m.uint64At(off)) }

// StoreUint64 writes a word with release order.
func (m *Mapping) StoreUint64(off int64, v uint64) { atomic.StoreUint64(m.uint64At(off), v) }

// OrUint64 sets bits in a word.
func (m *Mapping) OrUint64(off int64, bits uint64) { atomic.OrUint64(m.uint64At(off), bits) }

// AndUint64 clears all bits of a word except bits.
func (m *Mapping) AndUint64(off int64, bits uint64) { atomic.AndUint64(m.uint64At(off), bits) }

func (m *Mapping) uint64At(off int64) *uint64 {
	_ = m.data[off+7]
	return (*uint64)(unsafe.Pointer(&m.data[off]))
}

// PutUint64 writes a word that nobody else reads or writes before a store with release order
// publishes it.
func (m *Mapping) PutUint64(off int64, v uint64) { *m.uint64At(off) = v }
