package kvstore

import (
	"io"
	"log/slog"
	"reflect"
	"testing"
	"time"
)

// Of the keys that a file lacks, and of the fields that a Config lacks, the defaults are the
// same: UCM's, but for the rings.
func TestDefaultsAreUCMs(t *testing.T) {
	type options = map[string]any
	rings := RingOptions{RingEntries: 64}
	for chain, want := range map[string]struct {
		file string // what is required
		is   options
	}{
		"Cache|Ds3fs": {"storage_backends: /m", options{
			"Cache": CacheOptions{WaitingBlocks: 8192, DeviceStreams: 4},
			"Ds3fs": Ds3fsOptions{Mount: "/m", Rings: 2, WaitingTransfers: 1024, AcceptedShards: 32768, RingOptions: rings},
		}},
		"Cache|Posix": {"storage_backends: /m", options{
			"Cache": CacheOptions{WaitingBlocks: 8192, DeviceStreams: 4},
			"Posix": PosixOptions{Dirs: []string{"/m"}, Transfers: 128, WaitingTransfers: 1024, AcceptedShards: 32768},
		}},
		"Segment": {"storage_backends: /m\nsegment_capacity_gb: 1", options{
			"Segment": SegmentOptions{Dir: "/m", CapacityBytes: gib, Transfers: 32, WaitingTransfers: 1024, WaitingBlocks: 8192, FillBytes: 256 << 20},
		}},
		"Pages": {"pages_file: /m", options{
			"Pages": PagesOptions{URL: "http://127.0.0.1:18000", File: "/m", Transfers: 32, WaitingBatches: 1024, RingOptions: rings},
		}},
	} {
		ucm, notes, err := ReadConfig([]byte("store_pipeline: " + chain + "\nnamespace: {model: m, block_tokens: 16}\nblock_size: 4096\n" + want.file))
		if err != nil || len(notes) > 0 {
			t.Fatal(chain, notes, err)
		}
		fromFile, err := ucm.Config(chain)
		if err != nil {
			t.Fatal(chain, err)
		}
		inGo := Config{Namespace: fromFile.Namespace, Layout: Layout{BlockBytes: 4096}}
		switch chain {
		case "Cache|Ds3fs":
			inGo.Ds3fs = &Ds3fsOptions{Mount: "/m"}
		case "Cache|Posix":
			inGo.Posix = &PosixOptions{Dirs: []string{"/m"}}
		case "Segment":
			inGo.Segment = &SegmentOptions{Dir: "/m", CapacityBytes: gib}
		case "Pages":
			inGo.Pages = &PagesOptions{File: "/m"}
		}
		for how, c := range map[string]Config{"file": fromFile, "Go": inGo} {
			before := c
			if err := c.complete(splitChain(chain)); err != nil {
				t.Fatal(chain, err)
			}
			if c.Timeout != 30*time.Second {
				t.Errorf("%s, %s: the timeout is %v", chain, how, c.Timeout)
			}
			for store, is := range want.is {
				if got := reflect.ValueOf(c).FieldByName(store).Elem().Interface(); !reflect.DeepEqual(got, is) {
					t.Errorf("%s, %s: %s has\n  %+v, not\n  %+v", chain, how, store, got, is)
				}
			}
			if given := before.Posix; given != nil && given.Transfers != 0 {
				t.Error("the caller's options were changed")
			}
		}
	}
}

// The default of buffer_size is 64 GB, 256 where processes share a cache, and at most half of
// what is free. Where it is given, it is what is given, unless that is not free.
func TestDefaultSizeOfTheCache(t *testing.T) {
	for _, c := range []struct {
		options CacheOptions
		free    int64
		want    int64
	}{
		{CacheOptions{}, 1024 * gib, 64 * gib},
		{CacheOptions{}, 100 * gib, 50 * gib},
		{CacheOptions{Shared: true}, 1024 * gib, 256 * gib},
		{CacheOptions{Shared: true}, 100 * gib, 50 * gib},
		{CacheOptions{CapacityBytes: 70 * gib}, 100 * gib, 70 * gib},
		{CacheOptions{CapacityBytes: 170 * gib}, 100 * gib, 50 * gib},
	} {
		b := builder{
			Config: Config{Cache: &c.options, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))},
			free:   func(bool) (int64, error) { return c.free, nil },
		}
		if got, err := b.cacheBytes(); got != c.want || err != nil {
			t.Errorf("%+v with %d bytes free: %d, %v; want %d", c.options, c.free, got, err, c.want)
		}
	}
}
