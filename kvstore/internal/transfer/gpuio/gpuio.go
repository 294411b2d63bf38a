// Package gpuio moves bytes between files and the memory of a device: without a copy through
// host memory where the device can do that, as cuFile does, and otherwise by system calls and
// pinned memory.
//
// Checksums need the bytes on the host, so those of a move with a Piece are copied there as
// well, past the direct transfer.
package gpuio

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

const (
	stageBytes = 1 << 20 // of pinned memory, for each move that is under way

	// mostRefusals is how many direct transfers in a row may be refused after some have
	// succeeded.
	mostRefusals = 8

	// sectorBytes is the alignment of direct I/O.
	sectorBytes = 4096
)

// Options of New.
type Options struct {
	Device device.Device

	// Direct lets a Device that is a device.Direct use that.
	Direct bool

	// DirectIO opens files for direct transfers with O_DIRECT.
	DirectIO bool

	// BufferBytes bounds how much memory is registered for direct transfers. What is beyond
	// it works as well, and slower.
	BufferBytes int64

	Logger *slog.Logger
}

// Mover is a posix.DeviceMover. Any number of goroutines may use it.
type Mover struct {
	o      Options
	direct device.Direct // nil where the device has none
	count  kv.DeviceCounters

	refused  atomic.Bool  // direct transfers are not tried any more
	proved   atomic.Bool  // one has succeeded
	refusals atomic.Int32 // since the last that has

	pageCache atomic.Bool // system calls use it: the file system has refused to bypass it

	directBytes, refusedBuffers, buffered atomic.Int64 // as in kv.DeviceTransfers

	mu      sync.Mutex
	lanes   []*lane                     // not in use
	buffers map[*device.Buffer]standing // of those that the device was asked about
	left    int64                       // of BufferBytes
}

// standing is what is known of a buffer.
type standing struct {
	own   bool // registered by the mover, which ends that; others are the engine's
	unfit bool // for direct transfers
}

var _ posix.DeviceMover = (*Mover)(nil)

// New returns a mover. It registers nothing yet.
func New(o Options) *Mover {
	m := &Mover{o: o, buffers: map[*device.Buffer]standing{}, left: o.BufferBytes}
	m.direct, _ = o.Device.(device.Direct)
	if m.direct == nil || !o.Direct {
		m.refused.Store(true)
	}
	return m
}

// Direct reports whether direct transfers are tried.
func (m *Mover) Direct() bool { return !m.refused.Load() }

// refuse counts a direct transfer that was refused. Before one has succeeded, the first ends
// them: the file system or the driver does not have them.
func (m *Mover) refuse(err error) {
	n := m.refusals.Add(1)
	if m.proved.Load() && n < mostRefusals {
		return
	}
	if !m.refused.Swap(true) && m.o.Logger != nil {
		m.o.Logger.Warn("no direct transfers any more: copying through host memory", "device", m.o.Device.Name(), "error", err)
	}
}

// register registers a buffer if there is room for it. It reports whether direct transfers may
// use the buffer, which they may without registration as well, unless cuFile refuses this one.
func (m *Mover) register(b *device.Buffer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused.Load() {
		return false
	}
	if is, known := m.buffers[b]; known {
		return !is.unfit
	}
	if b.SizeBytes() > m.left {
		return true
	}
	err := m.direct.RegisterBuffer(b)
	var refused *device.DirectError
	switch {
	case err == nil:
		m.buffers[b], m.left = standing{own: true}, m.left-b.SizeBytes()
	case !errors.As(err, &refused):
		m.refuse(err)
	case refused.Code == device.DirectRegistered: // by the engine, and for us as well
		m.buffers[b] = standing{}
	case refused.OfBuffer():
		m.excludeLocked(b, refused)
	default:
		m.refuse(err)
	}
	return !m.refused.Load() && !m.buffers[b].unfit
}

// exclude ends direct transfers of one buffer.
func (m *Mover) exclude(b *device.Buffer, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.excludeLocked(b, err)
}

func (m *Mover) excludeLocked(b *device.Buffer, err error) {
	is := m.buffers[b]
	if is.unfit {
		return
	}
	is.unfit = true
	m.buffers[b] = is
	if m.refusedBuffers.Add(1) == 1 && m.o.Logger != nil {
		m.o.Logger.Warn("no direct transfers of some of the device's memory: copying it through host memory",
			"device", m.o.Device.Name(), "buffer_bytes", b.SizeBytes(), "error", err)
	}
}

// Transfers returns what was counted of transfers between the device and files.
func (m *Mover) Transfers() kv.DeviceTransfers {
	return kv.DeviceTransfers{DirectBytes: m.directBytes.Load(), RefusedBuffers: m.refusedBuffers.Load(), Buffered: m.buffered.Load()}
}

// Copies returns how much was copied between the host and the device.
func (m *Mover) Copies() kv.DeviceCopies { return m.count.Copies() }

// Open returns the way to move bytes of f, which stays the caller's.
func (m *Mover) Open(f *os.File) posix.DeviceFile { return &file{m: m, f: f} }

// Close releases what the mover holds. Nothing may be moving.
func (m *Mover) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, l := range m.lanes {
		errs = append(errs, l.stream.Close(), l.event.Close(), m.o.Device.FreeHost(l.mem))
	}
	for b, is := range m.buffers {
		if is.own {
			errs = append(errs, m.direct.UnregisterBuffer(b))
		}
	}
	m.lanes, m.buffers = nil, map[*device.Buffer]standing{}
	return errors.Join(errs...)
}

// Bytes returns a copy of memory of the device.
func (m *Mover) Bytes(at device.Place, sizeBytes int64) ([]byte, error) {
	all := make([]byte, 0, sizeBytes)
	err := m.with(at, func(l *lane, at device.Place) error {
		for int64(len(all)) < sizeBytes {
			part := l.mem[:min(sizeBytes-int64(len(all)), stageBytes)]
			if err := l.toHost(part, at); err != nil {
				return err
			}
			all = append(all, part...)
			at.Offset += int64(len(part))
		}
		return nil
	})
	return all, err
}

// with calls do with a lane, when what the place waits for has occurred.
func (m *Mover) with(at device.Place, do func(l *lane, at device.Place) error) error {
	if at.After != nil {
		if err := at.After.Wait(); err != nil {
			return err
		}
		at.After = nil
	}
	l, err := m.take()
	if err != nil {
		return err
	}
	defer m.give(l)
	return do(l, at)
}

// lane is what one move needs to copy between host and device.
type lane struct {
	count  *kv.DeviceCounters
	mem    []byte // pinned
	stream device.Stream
	event  device.Event
	broken bool // a copy may still be running
}

func (m *Mover) take() (*lane, error) {
	m.mu.Lock()
	if n := len(m.lanes); n > 0 {
		l := m.lanes[n-1]
		m.lanes = m.lanes[:n-1]
		m.mu.Unlock()
		return l, nil
	}
	m.mu.Unlock()
	mem, err := m.o.Device.AllocHost(stageBytes)
	if err != nil {
		return nil, fmt.Errorf("allocate pinned memory: %w", err)
	}
	l := &lane{count: &m.count, mem: mem}
	if l.stream, err = m.o.Device.NewStream(); err != nil {
		return nil, errors.Join(err, m.o.Device.FreeHost(mem))
	}
	if l.event, err = m.o.Device.NewEvent(); err != nil {
		return nil, errors.Join(err, l.stream.Close(), m.o.Device.FreeHost(mem))
	}
	return l, nil
}

// give puts a lane back. A broken one keeps its memory, which a copy may still use.
func (m *Mover) give(l *lane) {
	if l.broken {
		_ = l.stream.Close()
		_ = l.event.Close()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lanes = append(m.lanes, l)
}

func (l *lane) toHost(dst []byte, src device.Place) error {
	return l.wait(len(dst), l.stream.ToHost(dst, src))
}

func (l *lane) toDevice(dst device.Place, src []byte) error {
	return l.wait(len(src), l.stream.ToDevice(dst, src))
}

// wait waits for a copy, which was queued unless err says that it was not, and counts it.
// After an error the lane is broken, unless its stream can be waited for: the copy may still be
// running, and the error is a kv.ErrAbandoned.
func (l *lane) wait(sizeBytes int, err error) error {
	if err == nil {
		err = l.drain()
	}
	if err != nil {
		if l.broken = l.drain() != nil; l.broken {
			err = kv.Abandoned(fmt.Sprintf("a copy has failed, and it is not known whether it has ended: %v", err))
		}
	}
	l.count.Count(sizeBytes, err)
	return err
}

func (l *lane) drain() error {
	if err := l.event.Record(l.stream); err != nil {
		return err
	}
	return l.event.Wait()
}

// file is a posix.DeviceFile.
type file struct {
	m *Mover
	f *os.File

	mu       sync.Mutex
	second   *os.File // with the flags that direct transfers want
	direct   device.DirectFile
	buffered *os.File // uses the page cache, where f does not
}

// open returns the file for direct transfers, nil where they are refused.
func (f *file) open() device.DirectFile {
	if f.m.refused.Load() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.direct != nil {
		return f.direct
	}
	// cuFile does not take descriptors with O_NONBLOCK or O_NOFOLLOW, which the first one has.
	flags := 0
	if f.m.o.DirectIO {
		flags = unix.O_DIRECT
	}
	second, err := f.reopen(flags)
	if flags != 0 && errors.Is(err, unix.EINVAL) { // the file system has no direct I/O, which cuFile may do without
		second, err = f.reopen(0)
	}
	if err != nil {
		f.m.refuse(err)
		return nil
	}
	direct, err := f.m.direct.OpenDirect(second)
	if err != nil {
		second.Close()
		f.m.refuse(err)
		return nil
	}
	f.second, f.direct = second, direct
	return direct
}

// reopen opens the file again, for reading alone if it was opened for that. Through /proc it is
// the same file, even if its name is gone.
func (f *file) reopen(flags int) (*os.File, error) {
	has, err := unix.FcntlInt(f.f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("flags of %s: %w", f.f.Name(), err)
	}
	if has&unix.O_ACCMODE != unix.O_RDONLY {
		flags |= os.O_RDWR
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.f.Fd()), flags, 0)
}

// throughPageCache returns a descriptor for a system call of these bytes that is not aligned as
// one past the page cache has to be, or that the file system has refused.
func (f *file) throughPageCache() (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buffered == nil {
		buffered, err := f.reopen(0)
		if err != nil {
			return nil, fmt.Errorf("open again without O_DIRECT: %w", err)
		}
		f.buffered = buffered
	}
	return f.buffered, nil
}

// bypasses reports whether the descriptor bypasses the page cache.
func (f *file) bypasses() bool {
	flags, err := unix.FcntlInt(f.f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_DIRECT != 0
}

// Close ends the file's registration. Nothing may be moving.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.direct != nil {
		errs = append(errs, f.direct.Close(), f.second.Close())
	}
	if f.buffered != nil {
		errs = append(errs, f.buffered.Close())
	}
	f.direct, f.second, f.buffered = nil, nil, nil
	return errors.Join(errs...)
}

// Move does an op whose memory is a device's.
func (f *file) Move(op transfer.Op) (n int, err error) {
	err = f.m.with(*op.Device, func(l *lane, at device.Place) error {
		for n < op.Bytes {
			p := piece{f: f, l: l, at: at, offset: op.Offset + int64(n), mem: l.mem[:min(op.Bytes-n, stageBytes)], shown: op.Piece != nil}
			p.at.Offset += int64(n)
			do := p.read
			if op.Write {
				do = p.write
			}
			moved, err := do()
			if op.Piece != nil && moved > 0 && err == nil {
				op.Piece(p.mem[:moved])
			}
			n += moved
			if err != nil || moved < len(p.mem) {
				return err
			}
		}
		return nil
	})
	return n, err
}

// piece is a part of a move that fits into the pinned memory of a lane.
type piece struct {
	f      *file
	l      *lane
	at     device.Place
	offset int64
	mem    []byte
	shown  bool // mem is to have the bytes afterwards
}

// read fills the device's memory from the file.
func (p *piece) read() (int, error) {
	n, done, err := p.direct(false)
	if done {
		if err == nil && p.shown && n > 0 {
			err = p.l.toHost(p.mem[:n], p.at)
		}
		return n, err
	}
	if n, err = p.call((*os.File).ReadAt); err == io.EOF {
		err = nil
	}
	if err == nil && n > 0 {
		err = p.l.toDevice(p.at, p.mem[:n])
	}
	return n, err
}

// write writes the device's memory to the file.
func (p *piece) write() (int, error) {
	if p.shown {
		if err := p.l.toHost(p.mem, p.at); err != nil {
			return 0, err
		}
	}
	if n, done, err := p.direct(true); done {
		return n, err
	}
	if !p.shown {
		if err := p.l.toHost(p.mem, p.at); err != nil {
			return 0, err
		}
	}
	return p.call((*os.File).WriteAt)
}

// call moves the pinned memory by a system call. One past the page cache needs all of it aligned,
// and more than that where the device has larger sectors: EINVAL says so, and the page cache
// takes what it refuses.
func (p *piece) call(do func(f *os.File, mem []byte, offset int64) (int, error)) (int, error) {
	m := p.f.m
	aligned := p.offset%sectorBytes == 0 && len(p.mem)%sectorBytes == 0 && shm.Aligned(p.mem, sectorBytes)
	if aligned && !m.pageCache.Load() {
		n, err := do(p.f.f, p.mem, p.offset)
		if !errors.Is(err, unix.EINVAL) || !p.f.bypasses() {
			return n, err
		}
		if !m.pageCache.Swap(true) && m.o.Logger != nil {
			m.o.Logger.Warn("the file system accepts O_DIRECT and refuses what is aligned to 4096 bytes: using the page cache", "file", p.f.f.Name(), "error", err)
		}
	}
	f, err := p.f.throughPageCache()
	if err != nil {
		return 0, err
	}
	if aligned {
		m.buffered.Add(1)
	}
	return do(f, p.mem, p.offset)
}

// direct tries a direct transfer. Where it is refused, nothing is done. A write that is not
// aligned is not tried: of two that share a sector, one that reads and writes whole sectors
// could undo the other.
func (p *piece) direct(write bool) (n int, done bool, err error) {
	if write && (p.offset%sectorBytes != 0 || len(p.mem)%sectorBytes != 0) {
		return 0, false, nil
	}
	if !p.f.m.register(p.at.Buffer) {
		return 0, false, nil
	}
	d := p.f.open()
	if d == nil {
		return 0, false, nil
	}
	move := d.ReadAt
	if write {
		move = d.WriteAt
	}
	moved, err := move(p.at, int64(len(p.mem)), p.offset)
	var refused *device.DirectError
	switch {
	case err == nil:
		p.f.m.proved.Store(true)
		p.f.m.refusals.Store(0)
		p.f.m.directBytes.Add(moved)
	case errors.As(err, &refused) && refused.OfBuffer():
		p.f.m.exclude(p.at.Buffer, refused)
		return 0, false, nil
	case refused != nil, errors.Is(err, unix.EINVAL): // EINVAL: the file system's word on O_DIRECT
		p.f.m.refuse(err)
		return 0, false, nil
	}
	return int(moved), true, err
}
