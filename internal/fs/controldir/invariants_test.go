//go:build invariants

package controldir_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// A registry that confuses its registrations is detected before a client sees one.
func TestInvariantsOfRegistrations(t *testing.T) {
	for want, fn := range map[string]func(w world, r *registry){
		"has index 1 and is found at 0": func(w world, r *registry) {
			r.entries[0].Index = 1
			w.Getattr(alice(), wire.InoIovFirst)
		},
		"has index 60000000": func(w world, r *registry) {
			r.entries[0].Index = 60_000_000_000
			w.Lookup(alice(), wire.InoIovs, uuidA)
		},
	} {
		w := newWorld(settings.Options{})
		w.register(t, alice(), uuidA, shmA)
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "invariant violated: ") || !strings.Contains(said, want) {
					t.Errorf("panicked with %q, want %q", said, want)
				}
			}()
			fn(w, w.registry)
		}()
	}
}
