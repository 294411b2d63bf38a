package cuda

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/keys"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// gpu opens a real device, and skips the test where there is none.
func gpu(t testing.TB) *Device {
	t.Helper()
	d, err := Open(Options{})
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func TestContractOnGPU(t *testing.T) {
	d := gpu(t)
	storetest.Run(t, "Cache|Segment", storetest.Options{OnDevice: true, Configure: func(c *kvstore.Config) { c.Cache.Device = d }})
}

// Blocks go to and from the GPU, and the bytes are verified. The figures stand beside those
// of one large cuMemcpy, which is what the bus gives.
//
//	go test -run '^$' -bench GPU -v
func BenchmarkGPU(b *testing.B) {
	d := gpu(b)
	b.Logf("device: %s", d.Name())
	const blockBytes, blocks = 32 << 20, 32
	const total = blockBytes * blocks
	pinned, err := d.AllocHost(total)
	must(b, err)
	defer func() { must(b, d.FreeHost(pinned)) }()
	copy(pinned, bytes.Repeat(random(1<<20), total>>20))
	for i := range blocks {
		pinned[i*blockBytes] = byte(i) // no two are equal
	}
	mem := alloc(b, d, total)
	host := unsafe.Pointer(unsafe.SliceData(pinned))
	for name, plain := range map[string]func() int32{
		"cuMemcpyHtoD": func() int32 { return d.driver.cuMemcpyHtoD_v2(mem.Addr(), host, total) },
		"cuMemcpyDtoH": func() int32 { return d.driver.cuMemcpyDtoH_v2(host, mem.Addr(), total) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(total)
			for b.Loop() {
				must(b, d.in(name, plain))
			}
		})
	}
	s, err := kvstore.Open("Cache|Empty", kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16},
		Layout:    kvstore.Layout{BlockBytes: blockBytes, ShardBytes: 512 << 10},
		Timeout:   20 * time.Second,
		Cache:     &kvstore.CacheOptions{CapacityBytes: 2 * total, Device: d},
	})
	must(b, err)
	defer func() { must(b, s.Close()) }()
	var all []kvstore.Key
	var places []device.Place
	for i := range blocks {
		all = append(all, kvstore.Key{1, byte(i)})
		places = append(places, mem.At(int64(i)*blockBytes))
	}
	must(b, d.in("cuMemcpyHtoD", func() int32 { return d.driver.cuMemcpyHtoD_v2(mem.Addr(), host, total) }))
	b.Run("save", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			must(b, s.Delete(b.Context(), all))
			task, err := s.Save(b.Context(), s.Layout().ByBlockOn(all, places))
			must(b, err)
			must(b, task.Wait(b.Context()))
		}
	})
	back := alloc(b, d, total)
	for i := range places {
		places[i] = back.At(int64(i) * blockBytes)
	}
	b.Run("load", func(b *testing.B) {
		b.SetBytes(total)
		for b.Loop() {
			task, err := s.Load(b.Context(), s.Layout().ByLayerOn(all, places))
			must(b, err)
			must(b, task.Wait(b.Context()))
		}
	})
	got := make([]byte, total)
	must(b, d.in("cuMemcpyDtoH", func() int32 {
		return d.driver.cuMemcpyDtoH_v2(unsafe.Pointer(unsafe.SliceData(got)), back.Addr(), total)
	}))
	if !bytes.Equal(got, pinned) {
		b.Error("the bytes that came back from the GPU are others")
	}
}
