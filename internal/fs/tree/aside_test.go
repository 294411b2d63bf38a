package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// asideWorld is a tree that sets aside NAME.side before NAME.
type asideWorld struct {
	t    *testing.T
	tr   *Tree
	dir  string
	sums *integrity.Store

	mu  sync.Mutex
	log bytes.Buffer
}

func (w *asideWorld) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *asideWorld) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func newAsideWorld(t *testing.T) *asideWorld {
	w := &asideWorld{t: t}
	dir := t.TempDir()
	var err error
	w.sums, err = integrity.Open(integrity.Options{Files: dir, Dir: filepath.Join(dir, "sums"), Log: slog.New(slog.NewTextHandler(w, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.sums.Close)
	w.tr, w.dir = newTree(t, Options{Sums: w.sums, Aside: func(at string) []Aside {
		return []Aside{{Path: at + ".side", Name: at + ".side.bad"}, {Path: at, Name: at + ".bad"}}
	}})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.tr.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// create makes a file and returns it as it is found damaged.
func (w *asideWorld) create(name string) found {
	w.t.Helper()
	at := filepath.Join(w.dir, name)
	if err := os.WriteFile(at, []byte("x"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.Open(at)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	st, err := statFD(int(f.Fd()))
	if err != nil {
		w.t.Fatal(err)
	}
	return found{name, w.tr.identityOf(&st), st.Uid}
}

func (w *asideWorld) has(name string) bool {
	_, err := os.Lstat(filepath.Join(w.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *asideWorld) waitFor(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: %s", what, w.logged())
		}
	}
}

// Damage of one user's file does not move those of another, and the data does not go before what belongs to it.
func TestAsideLeavesOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("gives a file to another user")
	}
	w := newAsideWorld(t)
	f := w.create("f")
	w.create("f.side")
	side := filepath.Join(w.dir, "f.side")
	if err := os.Chown(side, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	w.tr.damaged <- f
	w.waitFor("no answer", func() bool { return w.sums.Counters().Aside > 0 || strings.Contains(w.logged(), "cannot rename") })
	w.tr.damaged <- w.create("g") // has nothing beside it
	w.waitFor("g stays", func() bool { return w.sums.Counters().Aside > 0 && w.has("g.bad") })
	if !w.has("f.side") || !w.has("f") {
		t.Errorf("f has been renamed, or what is another's: %s", w.logged())
	}
	if err := os.Chown(side, int(f.uid), -1); err != nil {
		t.Fatal(err)
	}
	w.tr.damaged <- f
	w.waitFor("f stays", func() bool { return w.sums.Counters().Aside == 3 })
	if !w.has("f.side.bad") || !w.has("f.bad") {
		t.Errorf("f: %s", w.logged())
	}
}

// A disk that is failing altogether is not tidied, and the log says so once.
func TestAsideEnds(t *testing.T) {
	w := newAsideWorld(t)
	for i := range mostAside {
		w.tr.damaged <- w.create(fmt.Sprintf("f%d", i))
	}
	w.waitFor("the log does not tell", func() bool { return strings.Contains(w.logged(), "no more damaged files are renamed") })
	if n := w.sums.Counters().Aside; n != mostAside {
		t.Errorf("%d were renamed", n)
	}
	w.tr.damaged <- w.create("last")
	if !w.has("last") || strings.Count(w.logged(), "no more damaged files") != 1 {
		t.Errorf("%d lines", strings.Count(w.logged(), "no more damaged files"))
	}
}
