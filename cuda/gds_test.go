package cuda

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	"github.com/kv3fs/kv3fs/internal/gpudirect"
	localhost "github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

const (
	gdsBlocks     = 6
	gdsBlockBytes = 64 << 10
	gdsBytes      = gdsBlocks * gdsBlockBytes
)

// gds opens Gds over cuFile, or without the device.
func gds(t *testing.T, dir string, d *Device, log io.Writer) *kvstore.Store {
	t.Helper()
	o := &kvstore.GdsOptions{Dirs: []string{dir}, Shape: []int64{gdsBlockBytes}, MemoryFormat: 4, Transfers: 2}
	if d != nil {
		o.Device = d
	}
	s, err := kvstore.Open("Gds", kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs/test", BlockTokens: 16, DType: "uint8"},
		Layout:    kvstore.Layout{BlockBytes: gdsBlockBytes, ShardBytes: 16 << 10},
		Logger:    slog.New(slog.NewTextHandler(log, nil)), Gds: o,
	})
	must(t, err)
	return s
}

// Blocks in the device's memory are saved and loaded over cuFile, past host memory, and whatever
// cuFile refuses, and whenever: at its driver, a file, a buffer, the first transfer or a later one.
// The files have the same bytes.
func TestGdsOverCuFile(t *testing.T) {
	if is, err := gpudirect.Judge(localhost.Local(), t.TempDir()); err != nil || is.Way == gpudirect.Refused {
		t.Skipf("NOT TESTED: GPUDirect Storage does not suit the directory of this test: %s %v", is.Why, err)
	}
	for name, c := range map[string]struct {
		before, after [2]any // what fails, with which number, from the beginning, or once all is saved
		direct        int64  // bytes past host memory
		refused       int64  // buffers
		says          string
	}{
		"nothing":                            {direct: 2 * gdsBytes},
		"5001, the driver":                   {before: [2]any{"fail_open", device.DirectNotInitialized}, says: "no direct transfers any more"},
		"5008, files":                        {before: [2]any{"fail_register", device.DirectFileSystem}, says: "no direct transfers any more"},
		"5030, the first transfer":           {before: [2]any{"fail_move", device.DirectInternal}, says: "no direct transfers any more"},
		"5030, all transfers after the save": {after: [2]any{"fail_move", device.DirectInternal}, direct: gdsBytes, says: "no direct transfers any more"},
		"5016, the buffer":                   {before: [2]any{"fail_buffer", device.DirectMappingSize}, refused: 1, says: "no direct transfers of some"},
		"5036, the buffer":                   {before: [2]any{"fail_buffer", device.DirectPinning}, refused: 1, says: "no direct transfers of some"},
		"5016, its first transfer":           {before: [2]any{"fail_move", device.DirectMappingSize}, refused: 1, says: "no direct transfers of some"},
		"5012, its transfers after the save": {after: [2]any{"fail_move", device.DirectPointer}, direct: gdsBytes, refused: 1, says: "no direct transfers of some"},
		"short transfers":                    {before: [2]any{"most", 5000}, direct: 2 * gdsBytes},
	} {
		t.Run(name, func(t *testing.T) {
			fail := func(what [2]any) {
				if what[0] != nil {
					setFile(t, what[0].(string), what[1].(int))
				}
			}
			d := open(t)
			fail(c.before)
			var log bytes.Buffer
			dir := t.TempDir()
			s := gds(t, dir, d, &log)
			b, l, want := alloc(t, d, gdsBytes), newLane(t, d, gdsBytes), random(gdsBytes)
			copy(l.mem, want)
			must(t, l.ToDevice(b.At(0), l.mem))
			l.wait(t)
			var all []kvstore.Key
			var places []device.Place
			for n := range gdsBlocks {
				all, places = append(all, keys.Int64Key(int64(n)+1)), append(places, b.At(int64(n)*gdsBlockBytes))
			}
			shards := s.Layout().ByBlockOn(all, places)
			save, err := s.Save(t.Context(), shards)
			must(t, err)
			must(t, save.Wait(t.Context()))
			fail(c.after)

			clear(l.mem)
			must(t, l.ToDevice(b.At(0), l.mem))
			l.wait(t)
			load, err := s.Load(t.Context(), shards)
			must(t, err)
			must(t, load.Wait(t.Context()))
			must(t, l.ToHost(l.mem, b.At(0)))
			l.wait(t)
			if !bytes.Equal(l.mem, want) {
				t.Error("other bytes are on the device")
			}
			stats := s.Stats()
			must(t, s.Close())
			if stats.DirectBytes != c.direct || stats.RefusedDeviceBuffers != c.refused {
				t.Errorf("%d bytes of %d went past host memory, %d buffers were refused\n%s", stats.DirectBytes, 2*gdsBytes, stats.RefusedDeviceBuffers, log.String())
			}
			if said := bytes.Count(log.Bytes(), []byte("no direct transfers")); said > 1 || c.says == "" && said > 0 || !bytes.Contains(log.Bytes(), []byte(c.says)) {
				t.Errorf("want %q once in\n%s", c.says, log.String())
			}

			plain := gds(t, dir, nil, io.Discard)
			bufs := make([][]byte, gdsBlocks)
			for n := range bufs {
				bufs[n] = make([]byte, gdsBlockBytes)
			}
			load, err = plain.Load(t.Context(), plain.Layout().ByBlock(all, bufs))
			must(t, err)
			must(t, load.Wait(t.Context()))
			if !bytes.Equal(bytes.Join(bufs, nil), want) {
				t.Error("other bytes are in the files")
			}
			must(t, plain.Close())
		})
	}
}
