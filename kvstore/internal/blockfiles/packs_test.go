package blockfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Of two packs in which a block follows different ones neither is believed, also if they are
// looked up at the same moment.
func TestPacksThatDisputeAtOnce(t *testing.T) {
	var ps packs
	for n := range 3000 {
		block := kv.Key{1, byte(n), byte(n >> 8)}
		var both sync.WaitGroup
		begin := make(chan struct{})
		for side := range 2 {
			both.Go(func() {
				keys := []kv.Key{{2, byte(n), byte(n >> 8), byte(side)}, block}
				<-begin
				ps.learn(pack{path: fmt.Sprint(n, "/", side), blocks: 2}, keys, 2, false)
			})
		}
		close(begin)
		both.Wait()
		if p, ok := ps.find(block); ok {
			t.Fatalf("%d: the block is taken to be in %s", n, p.path)
		}
	}
}

// What has the name of a pack and is none does not stay open until a garbage collection finds it.
func TestWhatIsNoPackIsClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	dir := t.TempDir()
	for range 10 {
		if _, _, err := (&Store{}).openPack(pack{path: dir, blocks: 2}); !gone(err) {
			t.Fatal(err)
		}
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && to == dir {
			t.Errorf("%s is open: %s", fd, to)
		}
	}
}
