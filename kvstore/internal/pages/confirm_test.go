package pages

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// lastWrite is an engine that holds the last write of the first batch of several blocks.
type lastWrite struct {
	transfer.Engine
	until   chan struct{}
	records chan struct{} // gets a value for each record that is written
	held    bool
	waiting sync.WaitGroup
}

func (e *lastWrite) Do(ctx context.Context, ops []transfer.Op) {
	if len(ops) == 1 && ops[0].Ahead { // a record
		done := ops[0].Done
		ops[0].Done = func(n int, err error) {
			done(n, err)
			e.records <- struct{}{}
		}
		e.Engine.Do(ctx, ops)
		return
	}
	if len(ops) <= layout.Shards() || e.held {
		e.Engine.Do(ctx, ops)
		return
	}
	e.held = true
	last := ops[len(ops)-1:]
	e.waiting.Go(func() {
		<-e.until
		e.Engine.Do(ctx, last)
	})
	e.Engine.Do(ctx, ops[:len(ops)-1])
}

// A large save confirms its blocks by one request when the last of them is written, or by a
// request every now and then while it lasts. Until then they wait.
func TestConfirmationsShareARequest(t *testing.T) {
	const blocks = 200
	for name, test := range map[string]struct {
		every time.Duration
		early bool // some are confirmed before the last is written
	}{"at the end": {10 * time.Hour, false}, "while it lasts": {time.Nanosecond, true}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, pageservice.Options{Reserve: 10 * time.Hour})
			confirmed := make(chan struct{}, blocks)
			middle(h, func(route string, w http.ResponseWriter, r *http.Request, next http.Handler) {
				if route == "confirm_write" {
					confirmed <- struct{}{}
				}
				next.ServeHTTP(w, r)
			})
			o := h.options(t.TempDir(), blocks)
			o.Reserve, o.Timeout = 10*time.Hour, 2*time.Hour
			e := &lastWrite{Engine: posix.New(posix.Options{}), until: make(chan struct{}), records: make(chan struct{}, blocks)}
			o.Engine = e
			s := mustOpen(t, o)
			s.confirmer.every = test.every
			task, err := s.Save(t.Context(), shardsOf(keysOf(0, blocks)...))
			if err != nil {
				t.Fatal(err)
			}
			for range blocks - 1 {
				<-e.records
			}
			if test.early {
				<-confirmed
			} else if len(confirmed) > 0 {
				t.Error("a block was confirmed while others of its batch were being written")
			}
			close(e.until)
			if err := errors.Join(results(t, task, nil)...); err != nil {
				t.Fatal(err)
			}
			e.waiting.Wait()
			if !test.early && len(confirmed) != 1 {
				t.Errorf("%d requests for %d blocks", len(confirmed), blocks)
			}
			if slices.Contains(lookup(t, s, keysOf(0, blocks)...), false) {
				t.Error("a block is not there")
			}
		})
	}
}

// A block that is saved alone does not wait for a large save.
func TestOneBlockIsConfirmedAtOnce(t *testing.T) {
	h := newHost(t, pageservice.Options{Reserve: 10 * time.Hour})
	o := h.options(t.TempDir(), 20)
	o.Reserve, o.Timeout = 10*time.Hour, 2*time.Hour
	e := &lastWrite{Engine: posix.New(posix.Options{}), until: make(chan struct{}), records: make(chan struct{}, 20)}
	o.Engine = e
	s := mustOpen(t, o)
	s.confirmer.every = 10 * time.Hour
	large, err := s.Save(t.Context(), shardsOf(keysOf(0, 10)...))
	if err != nil {
		t.Fatal(err)
	}
	for range 9 {
		<-e.records
	}
	stored(t, s, key(10))
	there(t, s, key(10))
	close(e.until)
	if err := errors.Join(results(t, large, nil)...); err != nil {
		t.Fatal(err)
	}
	e.waiting.Wait()
}

// A batch that only waits for blocks which a large save has written does not wait for that
// save.
func TestABlockSavedAgainIsConfirmedAtOnce(t *testing.T) {
	const blocks = 10
	s, e := largeSaveStore(t, newHost(t, pageservice.Options{Reserve: 10 * time.Hour}), blocks)
	large, err := s.Save(t.Context(), shardsOf(keysOf(0, blocks)...))
	if err != nil {
		t.Fatal(err)
	}
	for range blocks - 1 {
		<-e.records
	}
	for s.confirmer.length() < blocks-1 {
		runtime.Gosched()
	}
	stored(t, s, key(0))
	close(e.until)
	if err := errors.Join(results(t, large, nil)...); err != nil {
		t.Fatal(err)
	}
	e.waiting.Wait()
}

// Blocks that wait for a confirmation when the store is closed are there afterwards.
func TestCloseConfirmsWhatWaits(t *testing.T) {
	const blocks = batchKeys + 2
	h := newHost(t, pageservice.Options{Reserve: 10 * time.Hour})
	s, e := largeSaveStore(t, h, blocks)
	task, err := s.Save(t.Context(), shardsOf(keysOf(0, blocks)...))
	if err != nil {
		t.Fatal(err)
	}
	for range blocks - 1 {
		<-e.records
	}
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for s.group.Err() == nil {
		runtime.Gosched()
	}
	close(e.until)
	closing.Wait()
	e.waiting.Wait()
	results(t, task, nil) // the last write is refused
	o := s.o
	o.Engine = nil
	missing := 0 // the block whose last write was held: the last of the batch, or of its first row
	for _, found := range lookup(t, mustOpen(t, o), keysOf(0, blocks)...) {
		if !found {
			missing++
		}
	}
	if missing > 1 {
		t.Errorf("%d blocks are not there", missing)
	}
}

// A service that is away when a save's confirmations are due gets them when it is back.
func TestConfirmationsWaitForTheService(t *testing.T) {
	const blocks = batchKeys + 2
	h := newHost(t, pageservice.Options{Reserve: 10 * time.Hour})
	s, e := largeSaveStore(t, h, blocks)
	task, err := s.Save(t.Context(), shardsOf(keysOf(0, blocks)...))
	if err != nil {
		t.Fatal(err)
	}
	for range blocks - 1 {
		<-e.records
	}
	h.stop()
	close(e.until)
	<-e.records
	h.start()
	if err := errors.Join(results(t, task, nil)...); err != nil {
		t.Fatal(err)
	}
	e.waiting.Wait()
	if slices.Contains(lookup(t, s, keysOf(0, blocks)...), false) {
		t.Error("a block is not there")
	}
}

// largeSaveStore returns a store whose first save of several blocks holds its last write, and
// that confirms nothing because of the time.
func largeSaveStore(t *testing.T, h *host, blocks int64) (*Store, *lastWrite) {
	e := &lastWrite{Engine: posix.New(posix.Options{}), until: make(chan struct{}), records: make(chan struct{}, 2*blocks)}
	o := h.options(t.TempDir(), blocks)
	o.Reserve, o.Timeout, o.Engine = 10*time.Hour, 2*time.Hour, e
	s := mustOpen(t, o)
	s.confirmer.every = 10 * time.Hour
	return s, e
}

// length returns how many blocks wait to be confirmed.
func (c *confirmer) length() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}
