package kvstore

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// fullUCM has every optional key of UCM's document about Ds3fs, with UCM's defaults.
const fullUCM = `
ucm_connectors:
  - ucm_connector_name: "UcmPipelineStore"
    ucm_connector_config:
      store_pipeline: "Cache|Ds3fs"
      storage_backends: %q
      io_direct: true
      stream_number: 32
      waiting_queue_depth: 1024
      running_queue_depth: 32768
      timeout_ms: 30000
      cache_stream_number: 7
      buffer_size: %s

load_only_first_rank: false
`

// A file of UCM's opens as it is. What is not free of buffer_size is reduced, and the log
// says so.
func TestUCMsKeysOpenUnchanged(t *testing.T) {
	d := daemontest.Serve(t)
	for _, size := range []string{"64GB", "68719476736", "1024TB", "16 MiB"} {
		ucm, notes, err := ReadConfig(fmt.Appendf(nil, fullUCM, d.Mount, size))
		if err != nil {
			t.Fatal(size, err)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "load_only_first_rank") {
			t.Errorf("notes: %q", notes)
		}
		ucm.Namespace, ucm.BlockSize, ucm.ShardSize = namespace, testLayout.BlockBytes, testLayout.ShardBytes
		c, err := ucm.Config(ucm.StorePipeline)
		if err != nil {
			t.Fatal(err)
		}
		if c.Ds3fs.Rings != 32 || c.Ds3fs.WaitingTransfers != 1024 || c.Ds3fs.AcceptedShards != 32768 || c.Cache.WaitingBlocks != 1024 || c.Timeout != defaultTimeout {
			t.Errorf("%+v, %+v", c.Ds3fs, c.Cache)
		}
		if c.Cache.Copiers != 7 || c.Cache.DeviceStreams != 7 {
			t.Errorf("cache_stream_number: %+v", c.Cache)
		}
		if size != "16 MiB" {
			continue // opening it may take half of this machine's memory: see TestFit
		}
		var log strings.Builder
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s, err := Open(ucm.StorePipeline, c)
		if err != nil {
			t.Fatal(size, err)
		}
		if got := s.Stats().CapacityBytes; got < 16<<20-8192 || got > 16<<20 {
			t.Errorf("buffer_size: %s makes a cache of %d bytes", size, got)
		}
		save(t, s, testKeys(3)...)
		load(t, s, testKeys(3)...)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), "reduced") {
			t.Error(log.String())
		}
	}
}

// Where there is not as much memory as buffer_size says, the chain opens with less.
func TestChainsOpenWithTheMemoryThatIsFree(t *testing.T) {
	d := daemontest.Serve(t)
	for _, chain := range []string{"Cache|Ds3fs", "Ds3fs"} {
		ucm, _, err := ReadConfig(fmt.Appendf(nil, fullUCM, d.Mount, "1024TB"))
		if err != nil {
			t.Fatal(err)
		}
		ucm.Namespace, ucm.BlockSize, ucm.ShardSize = namespace, testLayout.BlockBytes, testLayout.ShardBytes
		c, err := ucm.Config(chain)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		const free = 32 << 20
		s, err := new(Registry).openWith(chain, c, func(bool) (int64, error) { return free, nil })
		if err != nil {
			t.Fatal(chain, err)
		}
		save(t, s, testKeys(3)...)
		if chain == "Cache|Ds3fs" {
			if got := s.Stats().CapacityBytes; got < free/2-8192 || got > free/2 {
				t.Errorf("a cache of %d bytes of %d free ones", got, free)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if want := fmt.Sprintf("is reduced to half of what is free\" wanted_bytes=%d taken_bytes=%d free_bytes=%d where=/dev/shm", int64(1024)<<40, free/2, free); !strings.Contains(log.String(), want) {
			t.Errorf("%s: no %q in\n%s", chain, want, log.String())
		}
	}
}

func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		wanted, free int64
		err          error
		want         int64
		logged       bool
	}{
		"free":        {64, 64, nil, 64, false},
		"not free":    {65, 64, nil, 32, true},
		"none free":   {65, 0, nil, 0, true},
		"nobody says": {65, 0, errors.New("no /proc"), 65, false},
	} {
		var log strings.Builder
		b := builder{Config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, free: func(inShm bool) (int64, error) {
			if !inShm {
				t.Error("asked for the wrong memory")
			}
			return c.free, c.err
		}}
		if got := b.fit("the cache", c.wanted, true); got != c.want || (log.Len() > 0) != c.logged {
			t.Errorf("%s: %d, log %q", name, got, log.String())
		}
	}
}

// buffer_size is the cache's where there is one, and a key about the cache itself counts
// more.
func TestBufferSize(t *testing.T) {
	for src, want := range map[string]struct {
		chain         string
		cache, buffer int64
		note          bool
	}{
		"buffer_size: 2GB": {"Cache|Ds3fs", 2 << 30, 0, false},
		"buffer_size: 2GB\ncache_buffer_capacity_gb: 3":   {"Cache|Ds3fs", 3 << 30, 0, true},
		"buffer_size: 2GB\ncache_buffer_bytes: 4096":      {"Cache|Ds3fs", 4096, 0, true},
		"buffer_size: 8 MiB":                              {"Ds3fs", 0, 8 << 20, false},
		"cache_buffer_capacity_gb: 0\nbuffer_size: 65536": {"Cache|Ds3fs", 65536, 0, false},
	} {
		ucm, notes, err := ReadConfig([]byte("store_pipeline: " + want.chain + "\nstorage_backends: /nowhere\nblock_size: 4096\nnamespace: {model: m}\n" + src))
		if err != nil {
			t.Fatal(src, err)
		}
		c, err := ucm.Config(want.chain)
		if err != nil {
			t.Fatal(src, err)
		}
		if got := deref(c.Cache).CapacityBytes; got != want.cache || c.Ds3fs.BufferBytes != want.buffer {
			t.Errorf("%q: a cache of %d bytes, a buffer of %d", src, got, c.Ds3fs.BufferBytes)
		}
		if noted := strings.Contains(strings.Join(notes, "\n"), "buffer_size has no effect"); noted != want.note {
			t.Errorf("%q: notes %q", src, notes)
		}
	}
}

// Through a ring io_direct is always true.
func TestIODirectOfDs3fs(t *testing.T) {
	for value, noted := range map[string]bool{"true": false, "false": true} {
		_, notes, err := ReadConfig([]byte("store_pipeline: Cache|Ds3fs\nio_direct: " + value))
		if err != nil || (len(notes) == 1 && strings.Contains(notes[0], "io_direct: false has no effect")) != noted {
			t.Errorf("%s: %q, %v", value, notes, err)
		}
	}
}
