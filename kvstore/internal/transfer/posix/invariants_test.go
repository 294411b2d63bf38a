//go:build invariants

package posix

import (
	"os"
	"testing"
)

func TestEndingTheUseOfAFileTwiceIsSeen(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	own, err := newFile(f, false)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := own.use(); err != nil {
		t.Fatal(err)
	}
	own.done()
	defer func() {
		if recover() == nil {
			t.Error("a use ended twice")
		}
		own.mu.TryLock() // the check panicked with the lock
		own.users = 0
		own.mu.Unlock()
	}()
	own.done()
}
