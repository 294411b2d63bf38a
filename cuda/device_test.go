package cuda

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/keys"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// lane is a stream and its event, and pinned memory.
type lane struct {
	device.Stream
	event device.Event
	mem   []byte
}

func newLane(t testing.TB, d *Device, sizeBytes int64) *lane {
	t.Helper()
	s, err := d.NewStream()
	must(t, err)
	e, err := d.NewEvent()
	must(t, err)
	mem, err := d.AllocHost(sizeBytes)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(s.Close(), e.Close(), d.FreeHost(mem))) })
	return &lane{s, e, mem}
}

func (l *lane) wait(t testing.TB) {
	t.Helper()
	must(t, l.event.Record(l.Stream))
	must(t, l.event.Wait())
}

func alloc(t testing.TB, d *Device, sizeBytes int64) *device.Buffer {
	t.Helper()
	b, err := d.Alloc(sizeBytes)
	must(t, err)
	t.Cleanup(func() { must(t, d.Free(b)) })
	return b
}

func random(sizeBytes int) []byte {
	b := make([]byte, sizeBytes)
	rng := rand.New(rand.NewPCG(1, uint64(sizeBytes)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Copies happen after they were queued, so what does not wait reads something else.
func TestCopies(t *testing.T) {
	d := open(t)
	b := alloc(t, d, 3<<20)
	l := newLane(t, d, 2<<20)
	want := random(1 << 20)
	copy(l.mem, want)
	must(t, l.ToDevice(b.At(4096), l.mem[:1<<20]))
	must(t, l.ToHost(l.mem[1<<20:], b.At(4096)))
	l.wait(t)
	if !bytes.Equal(l.mem[1<<20:], want) {
		t.Error("the bytes that came back are others")
	}
	if name := d.Name(); name != "host memory, no GPU (CUDA 0)" {
		t.Errorf("the device is called %q", name)
	}
}

// The memory of a cache is registered, not allocated.
func TestRegisteredMemory(t *testing.T) {
	d := open(t)
	b := alloc(t, d, 8192)
	l := newLane(t, d, 8192)
	mem := random(8192)
	if err := l.ToDevice(b.At(0), mem); err == nil {
		t.Error("memory that is not pinned was copied")
	}
	must(t, d.Register(mem))
	must(t, l.ToDevice(b.At(0), mem))
	l.wait(t)
	must(t, d.Unregister(mem))
	var e *Error
	if err := d.Unregister(mem); !errors.As(err, &e) || e.Symbol != "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" {
		t.Errorf("unregistered twice: %v", err)
	}
	must(t, l.ToHost(l.mem, b.At(0)))
	l.wait(t)
	if !bytes.Equal(l.mem, mem) {
		t.Error("the bytes that came back are others")
	}
}

// A stream waits for the event of another, also for one that something else has made.
func TestStreamsWaitForEvents(t *testing.T) {
	d := open(t)
	set(t, "delay_us", 3000)
	b := alloc(t, d, 4096)
	one, two := newLane(t, d, 4096), newLane(t, d, 4096)
	for n := range 20 {
		for i := range one.mem {
			one.mem[i] = byte(n + 1)
		}
		must(t, one.ToDevice(b.At(0), one.mem))
		must(t, one.event.Record(one.Stream))
		must(t, two.After(d.EventOf(one.event.(*event).handle)))
		must(t, two.ToHost(two.mem, b.At(0)))
		two.wait(t)
		if !bytes.Equal(one.mem, two.mem) {
			t.Fatalf("round %d: the second stream overtook the first", n)
		}
	}
}

func TestErrors(t *testing.T) {
	if _, err := Open(Options{Library: "/nowhere/libcuda.so.1"}); err == nil || !strings.Contains(err.Error(), "/nowhere/libcuda.so.1") {
		t.Errorf("without a library: %v", err)
	}
	if _, err := Open(Options{Library: "libc.so.6"}); err == nil || !strings.Contains(err.Error(), "cuMemAlloc_v2") {
		t.Errorf("a library that is not CUDA's: %v", err)
	}
	if _, err := Open(Options{Library: built(t).CUDA, Ordinal: 2}); err == nil || !strings.Contains(err.Error(), "no device 2") {
		t.Errorf("a device that is not there: %v", err)
	}
	d := open(t)
	var e *Error
	if _, err := d.Alloc(1 << 50); !errors.As(err, &e) || e.Symbol != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("too much: %v", err)
	}
	b := alloc(t, d, 4096)
	l := newLane(t, d, 4096)
	beyond, err := device.NewBuffer(d, b.Addr(), 8192)
	must(t, err)
	if err := l.ToDevice(beyond.At(4095), l.mem[:2]); !errors.As(err, &e) || e.Code != 1 {
		t.Errorf("beyond the end of an allocation: %v", err)
	}
	if err := l.ToDevice(device.NewHost(device.HostOptions{}).Wrap(make([]byte, 8)).At(0), l.mem[:8]); err == nil {
		t.Error("memory of another device")
	}
	set(t, "fail_copies", 1)
	must(t, l.ToDevice(b.At(0), l.mem))
	must(t, l.event.Record(l.Stream))
	if err := l.event.Wait(); !errors.As(err, &e) || e.Symbol != "CUDA_ERROR_ILLEGAL_ADDRESS" || e.Call != "cuEventSynchronize" {
		t.Errorf("a copy that failed: %v", err)
	}
	l.wait(t)
}

// The contract of block stores holds for memory of the device.
func TestContract(t *testing.T) {
	chains, all := []string{"Cache|Segment", "Gds"}, os.Getenv("KV3FS_SUITES") == "all" // as at night
	if testing.Short() {
		chains = []string{"Gds"}
	}
	if all {
		chains = append(chains, "Cache|Empty", "Cache|Gds")
	}
	for _, chain := range chains {
		t.Run(chain, func(t *testing.T) {
			d := open(t)
			storetest.Run(t, chain, storetest.Options{OnDevice: true, Brief: !all, Configure: onto(d)})
		})
	}
}

// onto has a chain's shards in memory of the device.
func onto(d *Device) func(*kvstore.Config) {
	return func(c *kvstore.Config) {
		if c.Cache != nil {
			c.Cache.Device = d
		}
		if c.Gds != nil {
			c.Gds.Device = d
		}
	}
}

func openStore(t *testing.T, d *Device, timeout time.Duration) *kvstore.Store {
	t.Helper()
	s, err := kvstore.Open("Cache|Empty", kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16},
		Layout:    kvstore.Layout{BlockBytes: 64 << 10, ShardBytes: 16 << 10},
		Timeout:   timeout,
		Cache:     &kvstore.CacheOptions{CapacityBytes: 1 << 20, Device: d},
	})
	must(t, err)
	return s
}

// A layer has landed when its bytes are on the device.
func TestLayersLandOnTheDevice(t *testing.T) {
	d := open(t)
	set(t, "delay_us", 500)
	s := openStore(t, d, 10*time.Second)
	defer s.Close()
	b := alloc(t, d, 4*64<<10)
	l := newLane(t, d, 64<<10)
	layout := s.Layout()
	blocks := []kvstore.Key{{1}, {2}}
	want := random(128 << 10)
	for i := range blocks {
		copy(l.mem, want[i*64<<10:])
		must(t, l.ToDevice(b.At(int64(i)*64<<10), l.mem))
		l.wait(t)
	}
	save, err := s.Save(t.Context(), layout.ByBlockOn(blocks, []device.Place{b.At(0), b.At(64 << 10)}))
	must(t, err)
	must(t, save.Wait(t.Context()))
	load, err := s.Load(t.Context(), layout.ByLayerOn(blocks, []device.Place{b.At(128 << 10), b.At(192 << 10)}))
	must(t, err)
	for layer := range layout.Shards() {
		<-load.Landed(layer)
		must(t, load.LandedErr(layer))
		for i := range blocks {
			at := i*64<<10 + layer*16<<10
			must(t, l.ToHost(l.mem[:16<<10], b.At(int64(128<<10+at))))
			l.wait(t)
			if !bytes.Equal(l.mem[:16<<10], want[at:at+16<<10]) {
				t.Errorf("layer %d of block %d is not on the device", layer, i)
			}
		}
	}
}

// A device that does not answer costs a timeout. What it may still use is not given back.
func TestDeviceThatHangs(t *testing.T) {
	d := openLeaky(t, 0)
	s := openStore(t, d, 200*time.Millisecond)
	before := get(t, "ranges") - 1 // without the cache's memory
	b, err := d.Alloc(64 << 10)    // and never freed
	must(t, err)
	set(t, "hang", 1)
	save, err := s.Save(t.Context(), s.Layout().ByBlockOn([]kvstore.Key{{1}}, []device.Place{b.At(0)}))
	must(t, err)
	if err := save.Wait(t.Context()); !errors.Is(err, kvstore.ErrTimeout) {
		t.Errorf("saving from a device that hangs: %v", err)
	}
	abandoned := 0
	for i := range save.Len() {
		if err, _ := save.Result(i); errors.Is(err, kvstore.ErrAbandoned) {
			abandoned++
		}
	}
	if abandoned == 0 || abandoned > 4 {
		t.Errorf("%d of 4 streams have abandoned a copy", abandoned)
	}
	if found, err := s.Contains(t.Context(), kvstore.Key{1}); err != nil || found {
		t.Errorf("the block exists: %t, %v", found, err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close says that nothing uses the memory any more")
	}
	if n := get(t, "ranges"); n != before+1+1 { // and the buffer
		t.Errorf("%d allocations and registrations, want %d: the cache's memory must stay registered", n, before+2)
	}
}

// A dead device fails everything at once, and the chain goes on without it.
func TestDeviceThatIsDead(t *testing.T) {
	d := openLeaky(t, 0)
	s := openStore(t, d, 10*time.Second)
	b := alloc(t, d, 64<<10)
	one := s.Layout().ByBlockOn([]kvstore.Key{{1}}, []device.Place{b.At(0)})
	save, err := s.Save(t.Context(), one)
	must(t, err)
	must(t, save.Wait(t.Context()))
	set(t, "dead", 1)
	load, err := s.Load(t.Context(), one)
	must(t, err)
	var e *Error
	if err := load.Wait(t.Context()); !errors.As(err, &e) && !errors.Is(err, kvstore.ErrAbandoned) {
		t.Errorf("loading onto a dead device: %v", err)
	}
	mem := make([]byte, 64<<10)
	load, err = s.Load(t.Context(), s.Layout().ByBlock([]kvstore.Key{{1}}, [][]byte{mem}))
	must(t, err)
	must(t, load.Wait(t.Context()))
	set(t, "dead", 0)
	_ = s.Close() // it may know that copies were abandoned
}
