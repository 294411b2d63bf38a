package blockfiles

import (
	"fmt"
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

// TestMain makes this binary one of the processes of a stress, if an environment variable
// says so.
func TestMain(m *testing.M) {
	if arg := os.Getenv(stressEnv); arg != "" {
		if err := stressProcess(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaktest.Main(m))
}
