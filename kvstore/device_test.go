package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Every chain whose shards may name memory of a device.
var deviceChains = []string{
	"Cache|Empty", "Cache|Posix", "Cache|Segment", "Cache|Ds3fs", "Cache|Pages", "Cache|LMCache", "Cache|Gds", "Cache|RtpLlm", "Cache|Kvcm", "Gds",
}

const (
	deviceBlocks   = 2
	deviceShards   = 3
	deviceStreams  = 8 // as many as shards, and a quarter more: saves leave that to loads
	devicePatience = 20 * time.Second
)

var deviceLayout = Layout{BlockBytes: deviceShards * 4096, ShardBytes: 4096}

// deviceWorld is where the chains of a test are.
type deviceWorld struct {
	dir, mount, pages string
}

func newDeviceWorld(t *testing.T) deviceWorld {
	w := deviceWorld{dir: daemontest.NewDir(t)}
	socket := filepath.Join(w.dir, "pages.sock")
	w.mount, w.pages = daemontest.Serve(t, "--pages-listen", "unix:"+socket).Mount, "unix:"+socket
	return w
}

// config is of any chain. One that is opened again finds what it has saved before.
func (w deviceWorld) config(chain string) Config {
	last := chain[strings.LastIndex(chain, "|")+1:]
	dir := filepath.Join(w.dir, strings.ReplaceAll(chain, "|", "-"))
	c := Config{
		Namespace: keys.Namespace{Model: "kv3fs/" + chain, BlockTokens: 16, DType: "uint8"},
		Layout:    deviceLayout,
	}
	if strings.HasPrefix(chain, "Cache") {
		c.Cache = &CacheOptions{CapacityBytes: 1 << 20}
	}
	switch last {
	case "Posix":
		c.Posix = &PosixOptions{Dirs: []string{dir}}
	case "Segment":
		c.Segment = &SegmentOptions{Dir: dir, CapacityBytes: 16 << 20, SegmentBytes: 1 << 20}
	case "Ds3fs":
		c.Ds3fs = &Ds3fsOptions{Mount: w.mount}
	case "Pages":
		c.Pages = &PagesOptions{URL: w.pages, File: dir, CapacityBytes: 1 << 20}
	case "LMCache":
		c.LMCache = &LMCacheOptions{
			BasePaths: []string{dir}, DType: "uint8", IDs: digestIDs{},
			Header: &LMCacheHeader{MemoryFormat: 4, Tensors: []LMCacheTensor{{DType: "uint8", Shape: []int{int(deviceLayout.BlockBytes)}}}},
		}
	case "Gds":
		c.Gds = &GdsOptions{Dirs: []string{dir}, Shape: []int64{deviceLayout.BlockBytes}, MemoryFormat: 4, Transfers: deviceStreams}
	case "RtpLlm":
		c.RtpLlm = &RtpLlmOptions{Root: w.dir, Biz: "device", Checkpoint: "/device", DType: 14}
	case "Kvcm":
		c.Kvcm = &KvcmOptions{Root: w.dir, Instance: "device", Spec: "tp0"}
	}
	return c
}

// open opens a chain with that device.
func (w deviceWorld) open(t *testing.T, chain string, d device.Device, timeout time.Duration) *Store {
	t.Helper()
	c := w.config(chain)
	c.Timeout = timeout
	if c.Cache != nil {
		c.Cache.Device, c.Cache.DeviceStreams = d, deviceStreams
	} else {
		c.Gds.Device = d
	}
	s, err := Open(chain, c)
	if err != nil {
		t.Fatalf("%s: %v", chain, err)
	}
	if s.Device() != d {
		t.Errorf("the store's device is %v", s.Device())
	}
	return s
}

// digestIDs makes an id of any key: those of these tests are not LMCache's.
type digestIDs struct{}

func (digestIDs) ID(key Key) (keys.ID, bool) {
	return keys.DigestID(append(key[:], make([]byte, len(key))...))
}
func (digestIDs) Key(id keys.ID) Key { return Key(id.Bytes()[:16]) }

// forEachDeviceChain runs a test for every chain, with a world for all.
func forEachDeviceChain(t *testing.T, test func(t *testing.T, w deviceWorld, chain string)) {
	w := newDeviceWorld(t)
	for _, chain := range deviceChains {
		t.Run(chain, func(t *testing.T) { test(t, w, chain) })
	}
}

// onDevice is blocks in memory of a host device, one behind the other.
type onDevice struct {
	keys   []Key
	buffer *device.Buffer
	places []device.Place
}

func newOnDevice(d *device.Host, from int) onDevice {
	b := onDevice{buffer: d.Wrap(make([]byte, deviceBlocks*deviceLayout.BlockBytes))}
	for i := range deviceBlocks {
		b.keys = append(b.keys, Key{9, byte(from + i)})
		b.places = append(b.places, b.buffer.At(int64(i)*deviceLayout.BlockBytes))
	}
	return b
}

// content is what a shard of a block has.
func (b onDevice) content(block, index int) []byte {
	return bytes.Repeat([]byte{b.keys[block][1], byte(index), 0x5a, byte(block)}, int(deviceLayout.ShardBytes)/4)
}

func (b onDevice) shard(block, index int) []byte {
	at := int64(block)*deviceLayout.BlockBytes + int64(index)*deviceLayout.ShardBytes
	return b.buffer.Bytes()[at : at+deviceLayout.ShardBytes]
}

func (b onDevice) fill() {
	for block := range b.keys {
		for index := range deviceShards {
			copy(b.shard(block, index), b.content(block, index))
		}
	}
}

// layerOf is the layer whose shard a copy moves.
func layerOf(c device.Copy) int { return int(c.Place.Offset/deviceLayout.ShardBytes) % deviceShards }

func until(t *testing.T, what string, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(devicePatience):
		t.Fatalf("waited in vain until %s", what)
	}
}

func saveAll(t *testing.T, s *Store, b onDevice) {
	t.Helper()
	task, err := s.Save(t.Context(), deviceLayout.ByBlockOn(b.keys, b.places))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err := errors.Join(err, s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// A layer has landed when its bytes are on the device and not before, whether the chain loads it
// from its storage or has it in memory. A save waits for the event that says that its bytes are
// computed.
func TestLayersLandOnTheDevice(t *testing.T) {
	forEachDeviceChain(t, func(t *testing.T, w deviceWorld, chain string) {
		var holding atomic.Bool
		gates := make([]chan struct{}, deviceShards)
		computed := make(chan struct{})
		d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
			switch {
			case len(c.Mem) == 1: // the engine's
				<-computed
			case c.ToDevice && holding.Load():
				<-gates[layerOf(c)]
			}
			return nil
		}})
		s := w.open(t, chain, d, devicePatience)
		b := newOnDevice(d, 0)
		b.fill()
		first := b.shard(0, 0)[0]
		b.shard(0, 0)[0] = ^first
		engine, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		event, err := d.NewEvent()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(engine.ToDevice(b.places[0], []byte{first}), event.Record(engine)); err != nil {
			t.Fatal(err)
		}
		b.places[0].After = event
		task, err := s.Save(t.Context(), deviceLayout.ByBlockOn(b.keys, b.places))
		if err != nil {
			t.Fatal(err)
		}
		if _, settled := task.Result(0); settled {
			t.Error("a shard was saved before it was computed")
		}
		close(computed)
		if err := errors.Join(task.Wait(t.Context()), s.Flush(t.Context()), engine.Close(), event.Close()); err != nil {
			t.Fatal(err)
		}
		if chain != "Cache|Empty" {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = w.open(t, chain, d, devicePatience)
		}
		for _, from := range []string{"storage", "memory"} {
			into := newOnDevice(d, 0)
			for i := range gates {
				gates[i] = make(chan struct{})
			}
			holding.Store(true)
			task, err := s.Load(t.Context(), deviceLayout.ByLayerOn(into.keys, into.places))
			if err != nil {
				t.Fatal(err)
			}
			for layer := range gates {
				select {
				case <-task.Landed(layer):
					t.Errorf("from %s: layer %d has landed before it was copied", from, layer)
				default:
				}
				close(gates[layer])
				until(t, fmt.Sprintf("from %s, layer %d has landed", from, layer), task.Landed(layer))
				if err := task.LandedErr(layer); err != nil {
					t.Errorf("from %s: layer %d: %v", from, layer, err)
				}
				for block := range into.keys {
					if !bytes.Equal(into.shard(block, layer), b.content(block, layer)) {
						t.Errorf("from %s: layer %d of block %d has landed, and other bytes are on the device", from, layer, block)
					}
				}
			}
			holding.Store(false)
		}
		if err := errors.Join(s.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
}

var errBus = errors.New("the bus is on fire")

// fitful is a device that is late, whose streams overtake each other, and that fails one copy in
// so many.
type fitful struct {
	*device.Host
	n, failed atomic.Int64
	oneIn     atomic.Int64 // 0: none
}

func newFitful() *fitful {
	f := &fitful{}
	f.Host = device.NewHost(device.HostOptions{Before: func(device.Copy) error {
		n := f.n.Add(1)
		if n%2 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if in := f.oneIn.Load(); in > 0 && n%in == 0 {
			f.failed.Add(1)
			return errBus
		}
		return nil
	}})
	return f
}

// On a device that is late, reorders and fails, each shard that is settled without an error has
// its bytes, each other one has the device's error, and everything works when the device does.
// Stats tell how many copies there were.
func TestChainsOnAFitfulDevice(t *testing.T) {
	forEachDeviceChain(t, func(t *testing.T, w deviceWorld, chain string) {
		f := newFitful()
		s := w.open(t, chain, f.Host, devicePatience)
		for round := range 6 {
			b := newOnDevice(f.Host, 10+deviceBlocks*round)
			b.fill()
			f.oneIn.Store(5)
			task, err := s.Save(t.Context(), deviceLayout.ByBlockOn(b.keys, b.places))
			if err != nil {
				t.Fatal(err)
			}
			for i, err := range task.All() {
				if err != nil && !errors.Is(err, errBus) {
					t.Errorf("round %d: saving shard %d: %v", round, i, err)
				}
			}
			f.oneIn.Store(0)
			saveAll(t, s, b)
			if round%2 == 0 && chain != "Cache|Empty" {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = w.open(t, chain, f.Host, devicePatience)
				f.failed.Store(0) // the store has counted nothing either
			}
			f.oneIn.Store(5)
			into := newOnDevice(f.Host, 10+deviceBlocks*round)
			shards := deviceLayout.ByLayerOn(into.keys, into.places)
			if task, err = s.Load(t.Context(), shards); err != nil {
				t.Fatal(err)
			}
			check := func(mayFail bool) {
				t.Helper()
				for i, err := range task.All() {
					block, index := i%deviceBlocks, shards[i].Index
					switch {
					case err == nil && !bytes.Equal(into.shard(block, index), b.content(block, index)):
						t.Errorf("round %d: block %d, shard %d has other bytes", round, block, index)
					case err != nil && !(mayFail && errors.Is(err, errBus)):
						t.Errorf("round %d: loading block %d, shard %d: %v", round, block, index, err)
					}
				}
			}
			check(true)
			f.oneIn.Store(0)
			if task, err = s.Load(t.Context(), shards); err != nil {
				t.Fatal(err)
			}
			check(false)
		}
		stats := s.Stats()
		if stats.FailedDeviceCopies != f.failed.Load() || stats.FailedDeviceCopies == 0 || stats.AbandonedDeviceCopies != 0 {
			t.Errorf("%d device copies failed and %d were abandoned; %d failed", stats.FailedDeviceCopies, stats.AbandonedDeviceCopies, f.failed.Load())
		}
		if stats.DeviceCopies < deviceBlocks*deviceShards || stats.DeviceBytes != stats.DeviceCopies*deviceLayout.ShardBytes {
			t.Errorf("%d device copies of %d bytes in all", stats.DeviceCopies, stats.DeviceBytes)
		}
		if stats.Next != nil && stats.Next.DeviceCopies != 0 {
			t.Error("the cache's copies count as the next store's")
		}
		if err := errors.Join(s.Close(), f.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A copy that the device does not end is counted as abandoned, in Stats and in the metrics.
func TestAbandonedCopiesAreCounted(t *testing.T) {
	gate := make(chan struct{})
	var hang atomic.Bool
	d := device.NewHost(device.HostOptions{Before: func(device.Copy) error {
		if hang.CompareAndSwap(true, false) {
			<-gate
		}
		return nil
	}})
	s, err := Open("Cache|Empty", Config{
		Namespace: namespace, Layout: deviceLayout, Timeout: 200 * time.Millisecond,
		Cache: &CacheOptions{CapacityBytes: 1 << 20, Device: d},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = s.Close() // it may not know yet that the copy has ended
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := newOnDevice(d, 0)
	hang.Store(true)
	task, err := s.Save(t.Context(), deviceLayout.ByBlockOn(b.keys, b.places))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); !errors.Is(err, ErrAbandoned) {
		t.Errorf("saving: %v", err)
	}
	close(gate)
	if err := s.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	stats := s.Stats()
	if stats.AbandonedDeviceCopies != 1 || stats.FailedDeviceCopies != 0 {
		t.Errorf("%d abandoned, %d failed", stats.AbandonedDeviceCopies, stats.FailedDeviceCopies)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(s, nil))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]float64{}
	for _, f := range families {
		if store := f.GetMetric()[0].GetLabel()[0].GetValue(); store == "Cache" {
			value[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	for name, want := range map[string]int64{
		"device_copies_total": stats.DeviceCopies, "device_copied_bytes_total": stats.DeviceBytes,
		"failed_device_copies_total": 0, "abandoned_device_copies_total": 1,
	} {
		if got, ok := value["kv3fs_kvstore_"+name]; !ok || got != float64(want) {
			t.Errorf("%s is %v (%t), want %d", name, got, ok, want)
		}
	}
}

// Transfers between a device and files are in Stats and in metrics.
func TestDeviceTransfersAreCounted(t *testing.T) {
	stats := statsOf(kv.Stats{Store: "Gds", DeviceTransfers: kv.DeviceTransfers{DirectBytes: 3, RefusedBuffers: 5, Buffered: 7}})
	registry := prometheus.NewRegistry()
	c := NewCollector(&Store{}, nil).(*collector)
	c.stats = func() Stats { return stats }
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]float64{}
	for _, f := range families {
		value[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	for name, want := range map[string]float64{"direct_transfer_bytes_total": 3, "refused_device_buffers_total": 5, "buffered_transfers_total": 7} {
		if got := value["kv3fs_kvstore_"+name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// cache_stream_number of UCM's file is how many copies run at once on the device, and UCM's
// device_id is taken without a word about what it would change: the caller's memory says where
// it is.
func TestCacheStreamNumberIsTheDevices(t *testing.T) {
	const yaml = `
ucm_connectors:
  - ucm_connector_name: "UcmPipelineStore"
    ucm_connector_config:
      store_pipeline: "Cache|Empty"
      device_id: 3
      cache_stream_number: %d
      buffer_size: 16 MiB
`
	for _, streams := range []int{1, 3, 5} {
		ucm, _, err := ReadConfig(fmt.Appendf(nil, yaml, streams))
		if err != nil {
			t.Fatal(err)
		}
		ucm.Namespace, ucm.BlockSize, ucm.ShardSize = namespace, deviceLayout.BlockBytes, deviceLayout.ShardBytes
		c, err := ucm.Config(ucm.StorePipeline)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		running, most := 0, 0
		all := make(chan struct{}) // closed when as many run as there are streams
		d := device.NewHost(device.HostOptions{Before: func(c device.Copy) error {
			if !c.ToDevice {
				return nil
			}
			mu.Lock()
			running++
			if most = max(most, running); running == streams && !closed(all) {
				close(all)
			}
			mu.Unlock()
			select {
			case <-all:
			case <-time.After(devicePatience):
			}
			time.Sleep(5 * time.Millisecond) // for one more to come, if it may
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}})
		c.Cache.Device = d
		s, err := Open(ucm.StorePipeline, c)
		if err != nil {
			t.Fatal(err)
		}
		b := newOnDevice(d, 0)
		saveAll(t, s, b)
		task, err := s.Load(t.Context(), deviceLayout.ByLayerOn(b.keys, b.places))
		if err == nil {
			err = task.Wait(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
		if most != streams {
			t.Errorf("%d copies at once, cache_stream_number is %d", most, streams)
		}
		if err := errors.Join(s.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
