package admin

import (
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// A daemon from before files could be chosen by what is known of them does nothing where a command would have it do more
// than was asked for; the command says why. What it understands, it does.
func TestOlderDaemon(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var done []string
	mux := http.NewServeMux()
	for _, name := range []string{"evict", "pin", "unpin"} {
		mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			done = append(done, path.Base(r.URL.Path))
			if _, err := io.WriteString(w, "{\"end\":true}\n"); err != nil {
				t.Error(err)
			}
		})
	}
	l, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: patience}
	var serves sync.WaitGroup
	serves.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Close()
		serves.Wait()
	})
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, of, all, none := t.Context(), []string{"models"}, 255, 0
	evict := func(f keeper.Filter) error {
		return c.Evict(ctx, keeper.Selection{Patterns: of, Filter: f}, false, func(keeper.Removal) error { return nil })
	}
	for what, err := range map[string]error{
		"owner":      evict(keeper.Filter{Origin: keeper.Origin{Owner: "lmcache"}}),
		"older than": evict(keeper.Filter{UnusedAtLeast: time.Hour, UsesAtMost: &all}),
		"newer than": evict(keeper.Filter{UnusedAtMost: time.Hour}),
		"min uses":   evict(keeper.Filter{UsesAtLeast: 1}),
		"max uses":   evict(keeper.Filter{UsesAtMost: &none}),
		"pin":        c.Pin(ctx, of, keeper.Origin{Owner: "lmcache"}),
		"unpin":      c.Unpin(ctx, of, keeper.Origin{Model: "m"}),
	} {
		if err == nil || !strings.Contains(err.Error(), "of another version than this command; restart it") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(done) > 0 {
		t.Errorf("%q were done without what narrows them", done)
	}
	for _, err := range []error{evict(keeper.Filter{UsesAtMost: &all}), c.Pin(ctx, of, keeper.Origin{}), c.Unpin(ctx, of, keeper.Origin{})} {
		if err != nil {
			t.Error(err)
		}
	}
	if want := []string{"evict", "pin", "unpin"}; !slices.Equal(done, want) {
		t.Errorf("%q were done; want %q", done, want)
	}
}
