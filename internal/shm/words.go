package shm

import (
	"sync/atomic"
	"unsafe"
)

// LoadUint64 reads a word as LoadInt32 does. off must be a multiple of 8.
func (m *Mapping) LoadUint64(off int64) uint64 { return atomic.LoadUint64(m.uint64At(off)) }

// StoreUint64 writes a word as StoreInt32 does.
func (m *Mapping) StoreUint64(off int64, v uint64) { atomic.StoreUint64(m.uint64At(off), v) }

// OrUint64 sets bits.
func (m *Mapping) OrUint64(off int64, bits uint64) { atomic.OrUint64(m.uint64At(off), bits) }

// AndUint64 leaves only these bits set.
func (m *Mapping) AndUint64(off int64, bits uint64) { atomic.AndUint64(m.uint64At(off), bits) }

func (m *Mapping) uint64At(off int64) *uint64 {
	_ = m.data[off+7]
	return (*uint64)(unsafe.Pointer(&m.data[off]))
}
