package ringserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// What it costs a client of the daemon's own mount namespace that others have a /dev/shm of their own: a registration, with
// and without the look at whose /dev/shm is meant.
func BenchmarkWhoseDevShm(b *testing.B) {
	s, _ := serve(b, Options{})
	path := filepath.Join(shm.Dir, "kv3fs-test-"+wire.NewUUID().String())
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.Remove(path) })
	for name, known := range map[string]bool{"looked": true, "assumed": false} {
		b.Run("register/"+name, func(b *testing.B) {
			s.shms.known = known
			for b.Loop() {
				r, err := s.Register(me, wire.NewUUID().String(), path)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Unregister(me, r.Name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	s.shms.known = true
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = s.shms.find(me)
		}
	})
}
