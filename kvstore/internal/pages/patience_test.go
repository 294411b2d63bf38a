package pages

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// A service that hangs costs a batch one timeout: the batch sends only the first of its
// requests.
func TestAServiceThatHangsIsAskedOnce(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	var hangs atomic.Bool
	var asked atomic.Int64
	middle(h, func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !hangs.Load() {
			next.ServeHTTP(w, r)
			return
		}
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client has gone
		<-r.Context().Done()
	})
	o := h.options(t.TempDir(), 2000)
	o.Timeout = time.Second
	s := mustOpen(t, o)
	stored(t, s, key(0))
	hangs.Store(true)
	const several = 2*batchKeys + 1
	for what, do := range map[string]func() []error{
		"Lookup": func() []error {
			return []error{s.Lookup(t.Context(), keysOf(0, several), make([]bool, several))}
		},
		"LookupPrefix": func() []error {
			_, err := s.LookupPrefix(t.Context(), keysOf(0, several))
			return []error{err}
		},
		"Load": func() []error { return load(t, s, keysOf(0, several)...) },
		"Save": func() []error { return save(t, s, keysOf(0, several)...) },
	} {
		asked.Store(0)
		for _, err := range do() {
			if !errors.Is(err, kv.ErrTimeout) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: %d requests hung, one after the other", what, n)
		}
	}
	hangs.Store(false)
	stored(t, s, key(1))
	there(t, s, key(0), key(1))
}

// A batch asks only once for pages that the service does not have.
func TestAFullServiceIsAskedOnce(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	var asked atomic.Int64
	middle(h, func(route string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if route == "reserve_and_allocate_page_indices" {
			asked.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	s := mustOpen(t, h.options(t.TempDir(), 4))
	stored(t, s, keysOf(0, 4)...)
	there(t, s, keysOf(0, 4)...) // and leases them
	asked.Store(0)
	for _, err := range save(t, s, keysOf(10, 20)...) {
		if !errors.Is(err, kv.ErrFull) {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// stuck is an engine whose writes wait.
type stuck struct {
	transfer.Engine
	begun   chan struct{} // closed by the first
	until   chan struct{}
	once    sync.Once
	waiting sync.WaitGroup
}

func (e *stuck) Do(ctx context.Context, ops []transfer.Op) {
	e.once.Do(func() { close(e.begun) })
	e.waiting.Go(func() {
		<-e.until
		e.Engine.Do(ctx, ops)
	})
}

// A batch waits for another writer of the block no longer than the timeout.
func TestWaitingForAWriterThatHangs(t *testing.T) {
	h := newHost(t, pageservice.Options{})
	e := &stuck{Engine: posix.New(posix.Options{}), begun: make(chan struct{}), until: make(chan struct{})}
	o := h.options(t.TempDir(), 20)
	o.Engine, o.Timeout = e, 100*time.Millisecond
	s := mustOpen(t, o)
	shards := shardsOf(key(0))
	first, err := s.Save(t.Context(), shards)
	if err != nil {
		t.Fatal(err)
	}
	<-e.begun
	for _, err := range save(t, s, key(0)) {
		if !errors.Is(err, kv.ErrTimeout) {
			t.Error(err)
		}
	}
	close(e.until)
	if err := errors.Join(results(t, first, nil)...); err != nil {
		t.Fatal(err)
	}
	e.waiting.Wait()
}

// full is an engine whose writes find no space.
type full struct{ transfer.Engine }

func (full) Do(_ context.Context, ops []transfer.Op) {
	for _, op := range ops {
		op.Done(0, &os.PathError{Op: "write", Path: "pages", Err: syscall.ENOSPC})
	}
}

// Saves into a sparse file on a full disk fail, with the reason.
func TestTheDiskIsFull(t *testing.T) {
	o := newHost(t, pageservice.Options{}).options(t.TempDir(), 20)
	o.Engine = full{posix.New(posix.Options{})}
	for _, err := range save(t, mustOpen(t, o), keysOf(0, 3)...) {
		if !errors.Is(err, kv.ErrFull) || !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}
}

// clock is an engine that records by when writes have to begin.
type clock struct {
	transfer.Engine
	mu sync.Mutex
	at map[int64]time.Time // by offset
}

func (c *clock) Do(ctx context.Context, ops []transfer.Op) {
	c.mu.Lock()
	for _, op := range ops {
		c.at[op.Offset], _ = ctx.Deadline()
	}
	c.mu.Unlock()
	c.Engine.Do(ctx, ops)
}

// Each block has the time of its own reservation, whatever other blocks are in the
// batch.
func TestAnOldBlockHurriesNoOther(t *testing.T) {
	c := &clock{Engine: posix.New(posix.Options{}), at: map[int64]time.Time{}}
	o := newHost(t, pageservice.Options{}).options(t.TempDir(), 20)
	o.Engine = c
	s := mustOpen(t, o)
	old := shardsOf(key(0))
	task, err := s.Save(t.Context(), old[:1])
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	p := s.unfinished[key(0)]
	p.writeBy = p.writeBy.Add(-5 * time.Second)
	s.mu.Unlock()
	task, err = s.Save(t.Context(), append(old[1:], shardsOf(key(1))...))
	if err := errors.Join(results(t, task, err)...); err != nil {
		t.Fatal(err)
	}
	pages, err := s.service.locate(t.Context(), keysOf(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	its, others := c.at[s.label.at(pages[0])+layout.ShardBytes], c.at[s.label.at(pages[1])]
	if its != p.writeBy || !others.After(its.Add(time.Second)) {
		t.Errorf("an old block has until %v, a new one until %v", its, others)
	}
}

// hangsAt is an engine whose reads at an offset hang.
type hangsAt struct {
	transfer.Engine
	at    atomic.Int64
	until chan struct{}
}

func (e *hangsAt) Do(ctx context.Context, ops []transfer.Op) {
	for _, op := range ops {
		if !op.Write && op.Offset == e.at.Load() {
			<-e.until
			ctx = context.WithoutCancel(ctx)
		}
		e.Engine.Do(ctx, []transfer.Op{op})
	}
}

// A batch has blocks that could not be read, and looking at these hangs. Its other blocks are saved nevertheless.
func TestBlocksBesideOnesThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	e := &hangsAt{Engine: posix.New(posix.Options{}), until: make(chan struct{})}
	e.at.Store(-1)
	o := newHost(t, pageservice.Options{}).options(t.TempDir(), 40)
	o.Engine, o.Timeout = e, 30*time.Second // half of it passes in vain, and the other one is for the healthy blocks
	s := mustOpen(t, o)
	t.Cleanup(func() { close(e.until) })
	stored(t, s, keysOf(0, 2)...)
	pages, err := s.service.locate(t.Context(), keysOf(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keysOf(0, 2) {
		s.unreadable.add(key, unread{page: pages[i], offset: s.label.at(pages[i]), bytes: layout.ShardBytes})
	}
	e.at.Store(s.label.at(pages[0]))
	bad := len(shardsOf(keysOf(0, 2)...))
	for i, err := range save(t, s, keysOf(0, 12)...) {
		switch {
		case i < bad && !errors.Is(err, kv.ErrTimeout):
			t.Errorf("shard %d, of a block that cannot be looked at: %v", i, err)
		case i >= bad && err != nil:
			t.Errorf("shard %d: %v", i, err)
		}
	}
}
