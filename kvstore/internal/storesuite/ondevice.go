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
	once    sync.Once
	closed  error

	memory sync.Mutex // guards what follows
	used   []*device.Buffer
}

func (d *onDevice) open() (err error) {
	if d.stream, err = d.device.NewStream(); err != nil {
		return err
	}
	if d.event, err = d.device.NewEvent(); err != nil {
		return err
	}
	d.pinned, err = d.device.AllocHost(max(d.Layout().ShardBytes, guardBytes))
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
	stride := size + guardBytes
	mem, err := d.device.Alloc(int64(len(shards))*stride + guardBytes)
	if err != nil {
		return nil, err
	}
	margin := bytes.Repeat([]byte{guard}, guardBytes)
	inner := make([]kv.Shard, len(shards))
	for i, s := range shards {
		inner[i] = s
		if i%4 == 3 {
			continue
		}
		at := mem.At(int64(i)*stride + guardBytes)
		inner[i].Buf, inner[i].Device = nil, &at
		d.write(mem.At(at.Offset-guardBytes), margin)
		d.write(at, s.Buf)
		d.write(mem.At(at.Offset+size), margin)
	}
	d.memory.Lock()
	d.used = append(d.used, mem)
	d.memory.Unlock()
	outer := kv.NewTask(ctx, shards)
	task, err := do(outer.Context(), inner)
	if err != nil {
		outer.Cancel()
		return nil, err
	}
	d.batches.Go(func() {
		for i, err := range task.All() {
			if at := inner[i].Device; at != nil && !errors.Is(err, kv.ErrAbandoned) {
				d.settled(*at, shards[i].Buf, margin, err == nil && !save)
			}
			outer.Settle(i, err)
		}
	})
	return outer, nil
}

// settled checks the margins of a shard, takes its bytes, and changes them: nothing may use
// them any more.
func (d *onDevice) settled(at device.Place, buf, margin []byte, loaded bool) {
	size := int64(len(buf))
	around := make([]byte, guardBytes)
	for _, offset := range []int64{at.Offset - guardBytes, at.Offset + size} {
		if d.read(around, at.Buffer.At(offset)); !bytes.Equal(around, margin) {
			d.t.Error("the store wrote outside a shard in the device's memory")
		}
	}
	if loaded {
		d.read(buf, at)
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
	d.wait(func() error { return d.stream.ToDevice(at, d.pinned[:copy(d.pinned, src)]) })
}

// read copies from the device and waits for it.
func (d *onDevice) read(dst []byte, at device.Place) {
	if mem := at.Buffer.Bytes(); mem != nil {
		copy(dst, mem[at.Offset:])
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait(func() error { return d.stream.ToHost(d.pinned[:len(dst)], at) })
	copy(dst, d.pinned)
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

// Close closes the store, checks that it has written nothing since, and releases the memory.
func (d *onDevice) Close() error {
	err := d.Store.Close()
	d.batches.Wait()
	d.once.Do(func() {
		d.closed = errors.Join(d.stream.Close(), d.event.Close(), d.device.FreeHost(d.pinned))
		for _, mem := range d.used {
			d.closed = errors.Join(d.closed, d.device.Free(mem))
		}
	})
	return errors.Join(err, d.closed)
}
