package tree

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Daemons of several hosts may have the same process number, as here.
func TestUnnamedFilesOfManyHosts(t *testing.T) {
	dir, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(dir) })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				fd, err := makeUnnamed(dir)
				if err != nil {
					t.Error(err)
					return
				}
				unix.Close(fd)
			}
		})
	}
	all.Wait()
}
