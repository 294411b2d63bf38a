package pages

import (
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var (
	layout    = kv.Layout{BlockBytes: 3 * 4096, ShardBytes: 4096}
	namespace = kv.Fingerprint{7}
)

// host runs a real page service that can be stopped and started again.
type host struct {
	t       testing.TB
	dir     string
	times   pageservice.Options
	address string
	index   *index.Index
	server  *http.Server
	served  chan error
	wrap    func(http.Handler) http.Handler // nil: as it is
}

func newHost(t testing.TB, times pageservice.Options) *host {
	h := &host{t: t, dir: t.TempDir(), times: times, address: "127.0.0.1:0"}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) start() {
	h.t.Helper()
	var err error
	if h.index, err = index.Open(journal.New(h.dir, journal.Options{}), index.Options{Options: h.times}); err != nil {
		h.t.Fatal(err)
	}
	l, err := net.Listen("tcp", h.address)
	if err != nil {
		h.t.Fatal(err)
	}
	h.address = l.Addr().String()
	handler := httpserver.New(h.index, httpserver.Options{}).Handler("")
	if h.wrap != nil {
		handler = h.wrap(handler)
	}
	h.server, h.served = &http.Server{Handler: handler}, make(chan error, 1)
	go func() { h.served <- h.server.Serve(l) }()
}

// stop cuts every connection.
func (h *host) stop() {
	h.t.Helper()
	if h.server == nil {
		return
	}
	h.server.Close()
	if err := <-h.served; !errors.Is(err, http.ErrServerClosed) {
		h.t.Error(err)
	}
	if err := h.index.Close(); err != nil {
		h.t.Error(err)
	}
	h.server = nil
}

func (h *host) url() string { return "http://" + h.address }

// hosts gives each directory a service until the test ends.
type hosts struct {
	mu  sync.Mutex
	all map[string]*host
}

func (h *hosts) at(t testing.TB, dir string) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[string]*host{}
	}
	if h.all[dir] == nil {
		h.all[dir] = newHost(t, pageservice.Options{})
	}
	return h.all[dir]
}

// options returns the options of a store with this many pages.
func (h *host) options(dir string, numPages int64) Options {
	return Options{
		URL: h.url(), File: filepath.Join(dir, "pages"), Layout: layout, Namespace: namespace,
		CapacityBytes: numPages * strideOf(layout),
	}
}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func key(n int) (k kv.Key) {
	binary.BigEndian.PutUint64(k[:], uint64(n))
	return k
}

func keysOf(first, n int) (all []kv.Key) {
	for i := range n {
		all = append(all, key(first+i))
	}
	return all
}

func shardsOf(keys ...kv.Key) []kv.Shard {
	var bufs [][]byte
	for range keys {
		bufs = append(bufs, make([]byte, layout.BlockBytes))
	}
	return layout.ByBlock(keys, bufs)
}

func content(s kv.Shard) workload.Pattern {
	return workload.PatternOf(binary.BigEndian.Uint64(s.Key[:]), uint64(s.Index))
}

// save saves whole blocks and returns each shard's error.
func save(t testing.TB, s *Store, keys ...kv.Key) []error {
	t.Helper()
	shards := shardsOf(keys...)
	for _, one := range shards {
		content(one).Fill(one.Buf)
	}
	task, err := s.Save(t.Context(), shards)
	return results(t, task, err)
}

// load loads whole blocks, checks what was loaded, and returns each shard's error.
func load(t testing.TB, s *Store, keys ...kv.Key) []error {
	t.Helper()
	shards := shardsOf(keys...)
	task, err := s.Load(t.Context(), shards)
	all := results(t, task, err)
	for i, err := range all {
		if wrongBytes, first := content(shards[i]).Check(shards[i].Buf); err == nil && wrongBytes > 0 {
			t.Fatalf("shard %d of block %s: %d wrong bytes from %d on", shards[i].Index, shards[i].Key, wrongBytes, first)
		}
	}
	return all
}

func results(t testing.TB, task *kv.Task, err error) []error {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	<-task.Done()
	all := make([]error, task.Len())
	for i := range all {
		all[i], _ = task.Result(i)
	}
	return all
}

func lookup(t testing.TB, s *Store, keys ...kv.Key) []bool {
	t.Helper()
	found := make([]bool, len(keys))
	if err := s.Lookup(t.Context(), keys, found); err != nil {
		t.Fatal(err)
	}
	return found
}
