package index

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/indextest"
)

// harness runs a book with a clock of its own.
type harness struct {
	t     *testing.T
	b     *Book
	dir   string
	lives int
	clock time.Time
	o     pageservice.Options
}

func (h *harness) Book() pageservice.Book { return h.b }

func (h *harness) Advance(d time.Duration) { h.clock = h.clock.Add(d) }

// Crash opens a copy of the file while the old book still runs: that is all kill -9
// would leave.
func (h *harness) Crash() {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.home(), FileName))
	if err != nil {
		h.t.Fatal(err)
	}
	h.lives++
	if err := os.Mkdir(h.home(), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.home(), FileName), data, 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

func (h *harness) home() string { return filepath.Join(h.dir, strconv.Itoa(h.lives)) }

func (h *harness) open() {
	h.t.Helper()
	b, err := Open(h.home(), Options{Options: h.o, Now: func() time.Time { return h.clock }})
	if err != nil {
		h.t.Fatal(err)
	}
	h.b = b
	h.t.Cleanup(func() {
		if err := b.check(); err != nil {
			h.t.Error(err)
		}
		if err := b.Close(); err != nil {
			h.t.Error(err)
		}
	})
}

func newHarness(t *testing.T, o pageservice.Options) indextest.Harness {
	h := &harness{t: t, o: o, dir: t.TempDir(), clock: time.Unix(1_800_000_000, 0)}
	h.open()
	return h
}

func TestConformance(t *testing.T) { indextest.Run(t, newHarness) }

func TestOnlyOneProcessHasTheFile(t *testing.T) {
	dir := t.TempDir()
	b, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = Open(dir, Options{})
	if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatal(err)
	}
}

func TestClosedBookAnswersErrClosed(t *testing.T) {
	b, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(context.Background()); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := b.Initialize(context.Background(), modelSpace, 0, pageservice.RankOptions{NumPages: 1}); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal("a second time:", err)
	}
}

// A wall clock that was set must not let pages rest for days, nor for no time at all.
func TestClockSetAcrossARestart(t *testing.T) {
	for _, step := range []time.Duration{-100 * time.Hour, 100 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) { clockSet(t, step) })
	}
}

func clockSet(t *testing.T, step time.Duration) {
	h := newHarness(t, pageservice.Options{}).(*harness)
	if _, err := h.b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.b.Reserve(ctx, modelSpace, 0, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	h.Advance(step)
	h.Crash()
	for _, want := range []int64{pageservice.None, 0} {
		grants, err := h.b.Reserve(ctx, modelSpace, 0, []string{"b"}, true)
		if err != nil || grants[0].Page != want {
			t.Fatal(grants, err)
		}
		h.Advance(70 * time.Second)
	}
}

// --tp is the operator's word: it holds for what was recorded without it, and when it
// is taken back.
func TestAnotherWorldHoldsFromTheNextStartOn(t *testing.T) {
	h := newHarness(t, pageservice.Options{}).(*harness)
	for rank := range 2 {
		if _, err := h.b.Initialize(ctx, modelSpace, rank, pageservice.RankOptions{NumPages: 4}); err != nil {
			t.Fatal(err)
		}
	}
	grants, err := h.b.Reserve(ctx, modelSpace, 0, []string{"a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.b.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: grants[0].Page}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		world   int
		visible bool
	}{{0, false}, {1, true}, {2, false}, {1, true}, {0, false}} {
		h.o.World = want.world
		h.Crash()
		found, err := h.b.Exists(ctx, modelSpace, []string{"a"})
		if err != nil || found[0] != want.visible {
			t.Fatalf("%+v: %v %v", want, found, err)
		}
	}
}
