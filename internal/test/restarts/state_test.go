package restarts

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

const sigterm = syscall.SIGTERM

// dieVariable is that of package invariants, in builds that assert them.
const dieVariable = "KV3FS_TEST_DIE_AT"

func needInvariants(t *testing.T) {
	t.Helper()
	if !invariants.Enabled {
		t.Skip("the daemon has points to die at only with -tags invariants")
	}
}

// isNotConnected reports whether a mount has no daemon any more.
func isNotConnected(err error) bool {
	return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
}

// forget makes the journals of a state say that nothing is in flight.
func forget(t *testing.T, state string) {
	t.Helper()
	const began, ended, taken, posted, head = 24, 32, 64, 128, 4096
	files, _ := filepath.Glob(filepath.Join(state, "rings", "*"))
	if len(files) != 2 {
		t.Fatalf("journals: %q", files)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint64(b[began:], binary.LittleEndian.Uint64(b[taken:]))
		binary.LittleEndian.PutUint64(b[ended:], binary.LittleEndian.Uint64(b[posted:]))
		clear(b[head:])
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
