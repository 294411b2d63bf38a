package storesuite

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// OnDevice returns the subject with its shards in memory of the store's device: three of
// four, so that the others are in the same batches. deviceOf returns that device. Each
// sentence of the contract then holds for memory of the device as for a Buf.
func OnDevice(s Subject, deviceOf func(Store) device.Device) Subject {
	inner := s
	s.Open = nil
	s.Versions = false
	s.OpenStore = func(t testing.TB, dir string, o Options) Store {
		store := inner.open(t, dir, o)
		d := &onDevice{Store: store, t: t, device: deviceOf(store)}
		if err := d.open(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	return s
}

// onDevice is a store whose callers' buffers are copied to and from memory of a device.
type onDevice struct {
	Store
	t      testing.TB
	device device.Device

	mu     sync.Mutex // guards the lane
	stream device.Stream
	event  device.Event
	pinned []byte

	batches sync.WaitGroup

	life   sync.RWMutex // held while a batch begins, and to end the use of the device
	closed bool
	err    error
	memory sync.Mutex // guards used
	used   []*device.Buffer
}

// pinnedBytes is how much is copied at once.
const pinnedBytes = 1 << 20

func (d *onDevice) open() (err error) {
	if d.stream, err = d.device.NewStream(); err != nil {
		return err
	}
	if d.event, err = d.device.NewEvent(); err != nil {
		return err
	}
	d.pinned, err = d.device.AllocHost(pinnedBytes)
	return err
}

func (d *onDevice) Load(ctx context.Context, shards []kv.Shard) (Task, error) {
	return d.begin(ctx, shards, d.Store.Load, false)
}

func (d *onDevice) Save(ctx context.Context, shards []kv.Shard) (Task, error) {
	return d.begin(ctx, shards, d.Store.Save, true)
}

// begin makes a batch of the device's memory. Between its shards are margins.
func (d *onDevice) begin(ctx context.Context, shards []kv.Shard, do func(context.Context, []kv.Shard) (Task, error), save bool) (Task, error) {
	size := d.Layout().ShardBytes
	if d.Layout().CheckShards(shards) != nil {
		_, err := do(ctx, wrong(d.device, shards, size))
		if err == nil {
			d.t.Error("a batch is accepted that is wrong")
		}
		return nil, err
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return do(ctx, shards)
	}
	stride := size + guardBytes
	mem, err := d.device.Alloc(int64(len(shards))*stride + guardBytes)
	if err != nil {
		return nil, err
	}
	d.memory.Lock()
	d.used = append(d.used, mem)
	d.memory.Unlock()
	inner := make([]kv.Shard, len(shards))
	whole := bytes.Repeat([]byte{guard}, int(mem.SizeBytes()))
	for i, s := range shards {
		inner[i] = s
		if i%4 == 3 {
			continue
		}
		at := mem.At(int64(i)*stride + guardBytes)
		inner[i].Buf, inner[i].Device = nil, &at
		copy(whole[at.Offset:], s.Buf)
	}
	d.write(mem.At(0), whole)
	outer := kv.NewTask(ctx, shards)
	task, err := do(outer.Context(), inner)
	if err != nil {
		outer.Cancel()
		return nil, err
	}
	d.batches.Go(func() {
		for i, err := range task.All() {
			if at := inner[i].Device; at != nil && !errors.Is(err, kv.ErrAbandoned) {
				d.settled(*at, shards[i].Buf, err == nil && !save)
			}
			outer.Settle(i, err)
		}
	})
	return outer, nil
}

// settled checks the margins of a shard, takes its bytes, and changes them: nothing may use
// them any more.
func (d *onDevice) settled(at device.Place, buf []byte, loaded bool) {
	got := make([]byte, guardBytes+len(buf)+guardBytes)
	d.read(got, at.Buffer.At(at.Offset-guardBytes))
	before, bytesOf, after := got[:guardBytes], got[guardBytes:guardBytes+len(buf)], got[guardBytes+len(buf):]
	if bytes.Count(before, []byte{guard})+bytes.Count(after, []byte{guard}) != 2*guardBytes {
		d.t.Error("the store wrote outside a shard in the device's memory")
	}
	if loaded {
		copy(buf, bytesOf)
	}
	d.write(at, bytes.Repeat([]byte{mangled}, len(buf)))
}

// wrong returns a batch that is wrong in the same way. Memory of a device cannot be too
// long, so that stays on the host.
func wrong(dev device.Device, shards []kv.Shard, size int64) []kv.Shard {
	all := make([]kv.Shard, len(shards))
	for i, s := range shards {
		all[i] = s
		if n := int64(len(s.Buf)); n < size {
			at := device.Place{}
			if b, err := device.NewBuffer(dev, 1<<40, max(n, 1)); err == nil {
				at = b.At(0)
			}
			all[i].Buf, all[i].Device = nil, &at
		}
	}
	return all
}

// write copies to the device and waits for it.
func (d *onDevice) write(at device.Place, src []byte) {
	if mem := at.Buffer.Bytes(); mem != nil {
		copy(mem[at.Offset:], src)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(src) > 0 {
		n := copy(d.pinned, src)
		d.wait(func() error { return d.stream.ToDevice(at, d.pinned[:n]) })
		src, at.Offset = src[n:], at.Offset+int64(n)
	}
}

// read copies from the device and waits for it.
func (d *onDevice) read(dst []byte, at device.Place) {
	if mem := at.Buffer.Bytes(); mem != nil {
		copy(dst, mem[at.Offset:])
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(dst) > 0 {
		n := min(len(dst), len(d.pinned))
		d.wait(func() error { return d.stream.ToHost(d.pinned[:n], at) })
		copy(dst, d.pinned[:n])
		dst, at.Offset = dst[n:], at.Offset+int64(n)
	}
}

func (d *onDevice) wait(queue func() error) {
	err := queue()
	if err == nil {
		err = d.event.Record(d.stream)
	}
	if err == nil {
		err = d.event.Wait()
	}
	if err != nil {
		d.t.Errorf("copying to or from the device: %v", err)
	}
}

// Close closes the store and then releases the memory.
func (d *onDevice) Close() error {
	err := d.Store.Close()
	d.life.Lock()
	defer d.life.Unlock()
	d.batches.Wait()
	if !d.closed {
		d.closed = true
		d.err = errors.Join(d.stream.Close(), d.event.Close(), d.device.FreeHost(d.pinned))
		for _, mem := range d.used {
			d.err = errors.Join(d.err, d.device.Free(mem))
		}
	}
	return errors.Join(err, d.err)
}
