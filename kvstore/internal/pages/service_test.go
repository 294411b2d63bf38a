package pages

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"net/http/httptest"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// stored saves blocks, which must succeed.
func stored(t *testing.T, s *Store, keys ...kv.Key) {
	t.Helper()
	if err := errors.Join(save(t, s, keys...)...); err != nil {
		t.Fatal(err)
	}
}

// there loads blocks, which must succeed.
func there(t *testing.T, s *Store, keys ...kv.Key) {
	t.Helper()
	for i, found := range lookup(t, s, keys...) {
		if !found {
			t.Fatalf("block %d is not found", i)
		}
	}
	if err := errors.Join(load(t, s, keys...)...); err != nil {
		t.Fatal(err)
	}
}

func TestTheServiceRestarts(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 200))
	for round := range 4 {
		stored(t, s, keysOf(round*10, 10)...)
		h.stop()
		h.start()
		there(t, s, keysOf(0, round*10+10)...)
	}
}

// A Save waits for a service that restarts.
func TestASaveOutlivesARestart(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 200))
	h.stop()
	shards := shardsOf(keysOf(0, 20)...)
	for _, one := range shards {
		content(one).Fill(one.Buf)
	}
	task, err := s.Save(t.Context(), shards)
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	if err := errors.Join(results(t, task, nil)...); err != nil {
		t.Fatal(err)
	}
	there(t, s, keysOf(0, 20)...)
}

// While the service is away every call ends soon, with an error that is not a miss.
func TestTheServiceIsAway(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	o := h.options(t.TempDir(), 200)
	o.Timeout = time.Second
	s := mustOpen(t, o)
	stored(t, s, key(0))
	h.stop()
	if err := s.Lookup(t.Context(), keysOf(0, 1), make([]bool, 1)); err == nil || !strings.Contains(err.Error(), h.address) {
		t.Errorf("Lookup: %v", err)
	}
	if _, err := s.LookupPrefix(t.Context(), keysOf(0, 1)); err == nil {
		t.Error("LookupPrefix: no error")
	}
	for _, err := range load(t, s, key(0)) {
		if err == nil || errors.Is(err, kv.ErrMiss) {
			t.Errorf("Load: %v", err)
		}
	}
	for _, err := range save(t, s, key(1)) {
		if !errors.Is(err, kv.ErrTimeout) {
			t.Errorf("Save: %v", err)
		}
	}
	stats := s.Stats()
	if stats.FailedLoads != 3 || stats.FailedSaves != 3 || stats.MissedShards != 0 {
		t.Errorf("%+v", stats)
	}
	h.start()
	there(t, s, key(0))
	stored(t, s, key(1))
}

// The store registers the rank again with a service that has lost its index. The old
// blocks in the file are overwritten in time.
func TestTheServiceHasLostItsIndex(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 40))
	lose := func() {
		h.stop()
		if err := os.RemoveAll(h.dir); err != nil {
			t.Fatal(err)
		}
		h.start()
	}
	stored(t, s, keysOf(0, 20)...)
	lose()
	for i, found := range lookup(t, s, keysOf(0, 20)...) {
		if found {
			t.Fatal(i)
		}
	}
	stored(t, s, keysOf(10, 20)...)
	there(t, s, keysOf(10, 20)...)
	lose()
	for _, err := range load(t, s, key(15)) {
		if !errors.Is(err, kv.ErrMiss) {
			t.Fatal(err)
		}
	}
	lose()
	stored(t, s, key(99))
	there(t, s, key(99))
}

// The index is lost between reservation and confirmation. The blocks are not there, and
// no shard is settled as if they were.
func TestTheIndexIsLostDuringASave(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	s := mustOpen(t, h.options(t.TempDir(), 40))
	shards := shardsOf(key(0))
	for _, one := range shards {
		content(one).Fill(one.Buf)
	}
	task, err := s.Save(t.Context(), shards[:2])
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	h.stop()
	if err := os.RemoveAll(h.dir); err != nil {
		t.Fatal(err)
	}
	h.start()
	task, err = s.Save(t.Context(), shards[2:])
	if err := errors.Join(results(t, task, err)...); !errors.Is(err, errUnknown) {
		t.Fatal(err)
	}
	stored(t, s, key(0))
	there(t, s, key(0))
}

// middle puts a test's hook in front of the service.
func middle(h *host, hook func(route string, w http.ResponseWriter, r *http.Request, next http.Handler)) {
	h.stop()
	h.wrap = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hook(path.Base(r.URL.Path), w, r, next) })
	}
	h.start()
}

// A lost answer, a lost request or a service that is too busy costs only another request.
func TestLostAnswers(t *testing.T) {
	for _, route := range []string{"initialize", "exists", "get_page_indices", "reserve_and_allocate_page_indices", "confirm_write"} {
		for _, how := range []string{"request", "answer", "busy"} {
			if how == "busy" && (route == "exists" || route == "get_page_indices") {
				continue // these fail at once: a miss is cheaper than waiting
			}
			t.Run(route+" "+how, func(t *testing.T) {
				h := newHost(t, pageservice.Options{})
				var lost atomic.Int64
				middle(h, func(asked string, w http.ResponseWriter, r *http.Request, next http.Handler) {
					if asked != route || lost.Add(1) > 1 {
						next.ServeHTTP(w, r)
						return
					}
					switch how {
					case "busy":
						w.Header().Set("Retry-After", "1")
						http.Error(w, `{"detail":"too many requests at once"}`, http.StatusServiceUnavailable)
						return
					case "answer":
						next.ServeHTTP(httptest.NewRecorder(), r)
					}
					panic(http.ErrAbortHandler)
				})
				s := mustOpen(t, h.options(t.TempDir(), 40))
				stored(t, s, keysOf(0, 4)...)
				there(t, s, keysOf(0, 4)...)
				if lost.Load() < 2 {
					t.Errorf("asked %d times", lost.Load())
				}
			})
		}
	}
}

// A strange answer is an error that says what is strange.
func TestStrangeAnswers(t *testing.T) {
	var answer atomic.Pointer[string]
	var status atomic.Int64
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) == "initialize" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(int(status.Load()))
		fmt.Fprint(w, *answer.Load())
	}))
	defer strange.Close()
	o := (&host{}).options(t.TempDir(), 8)
	o.URL = strange.URL
	s := mustOpen(t, o)
	for _, c := range []struct {
		status       int
		answer, says string
	}{
		{200, "<html>", "not that of a page service"},
		{200, `{}`, "0 answers to 1 keys"},
		{200, `{"exists":[true,true],"indices":[1,2]}`, "2 answers to 1 keys"},
		{200, `{"exists":[1],"indices":[8]}`, "not that of a page service"},
		{200, `{"exists":["x"],"indices":[-2]}`, "not that of a page service"},
		{200, `{"exists":{},"indices":[[true,8]]}`, "not that of a page service"},
		{204, "", "No Content"},
		{401, `{"detail":"the token is missing or wrong"}`, "wants a token"},
		{404, `{"detail":"Not Found"}`, "knows no namespaces"},
		{500, `oh`, "Internal Server Error"},
	} {
		status.Store(int64(c.status))
		answer.Store(&c.answer)
		if err := s.Lookup(t.Context(), keysOf(0, 1), make([]bool, 1)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d %s: Lookup: %v", c.status, c.answer, err)
		}
		for _, err := range load(t, s, key(0)) {
			if err == nil || errors.Is(err, kv.ErrMiss) {
				t.Errorf("%d %s: Load: %v", c.status, c.answer, err)
			}
		}
		for _, err := range save(t, s, key(0)) {
			if err == nil || errors.Is(err, kv.ErrFull) {
				t.Errorf("%d %s: Save: %v", c.status, c.answer, err)
			}
		}
	}
}

// A batch of many blocks sends few requests, layer by layer as few as block by block.
func TestRequestsAreFew(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	var mu sync.Mutex
	asked := map[string]int{}
	middle(h, func(route string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		asked[route]++
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
	s := mustOpen(t, h.options(t.TempDir(), 1500))
	shards := shardsOf(keysOf(0, 100)...)
	for layer := range layout.Shards() {
		var some []kv.Shard
		for _, one := range shards {
			if one.Index == layer {
				content(one).Fill(one.Buf)
				some = append(some, one)
			}
		}
		task, err := s.Save(t.Context(), some)
		if err := errors.Join(results(t, task, err)...); err != nil {
			t.Fatal(err)
		}
	}
	stored(t, s, keysOf(100, 600)...)
	lookup(t, s, keysOf(0, 1200)...)
	if n, err := s.LookupPrefix(t.Context(), keysOf(10, 1200)); err != nil || n != 690 {
		t.Fatal(n, err)
	}
	for i, err := range load(t, s, keysOf(0, 700)...) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	for route, most := range map[string]int{"initialize": 1, "reserve_and_allocate_page_indices": 3, "exists": 8, "get_page_indices": 2} {
		if asked[route] > most || asked[route] == 0 {
			t.Errorf("%s was asked %d times, at most %d are needed", route, asked[route], most)
		}
	}
	t.Logf("%v", asked)
}

// Requests and answers of several stores on one file get lost. What was settled is
// there, and what is loaded is right.
func TestRequestsFailAtRandom(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	var trouble atomic.Bool
	var n atomic.Uint64
	middle(h, func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch fate := rand.New(rand.NewPCG(5, n.Add(1))).IntN(10); {
		case !trouble.Load() || fate > 2:
			next.ServeHTTP(w, r)
		case fate == 0:
			http.Error(w, `{"detail":"too many requests at once"}`, http.StatusServiceUnavailable)
		case fate == 1:
			panic(http.ErrAbortHandler)
		default:
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
	})
	o := h.options(t.TempDir(), 2000)
	stores := []*Store{mustOpen(t, o), mustOpen(t, o)}
	trouble.Store(true)
	var together sync.WaitGroup
	var mu sync.Mutex
	settled := map[kv.Key]bool{}
	for g := range 4 {
		s := stores[g%2]
		rng := rand.New(rand.NewPCG(6, uint64(g)))
		together.Go(func() {
			for range 25 {
				some := keysOf(rng.IntN(100), 1+rng.IntN(8))
				lost := map[kv.Key]bool{}
				for i, err := range save(t, s, some...) {
					lost[some[i/layout.Shards()]] = lost[some[i/layout.Shards()]] || err != nil
				}
				mu.Lock()
				for _, k := range some {
					settled[k] = settled[k] || !lost[k]
				}
				mu.Unlock()
				load(t, s, some...) // which checks the bytes
			}
		})
	}
	together.Wait()
	trouble.Store(false)
	var kept []kv.Key
	for k, is := range settled {
		if is {
			kept = append(kept, k)
		}
	}
	if len(kept) < 50 {
		t.Errorf("only %d blocks were settled", len(kept))
	}
	for _, s := range stores {
		there(t, s, kept...)
		if got := s.Stats().CorruptBlocks; got != 0 {
			t.Errorf("%d blocks count as damaged", got)
		}
	}
}
