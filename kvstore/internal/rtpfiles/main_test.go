package rtpfiles

import (
	"fmt"
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(childRoot); root != "" {
		fmt.Println(child(root))
		os.Exit(1)
	}
	os.Exit(daemontest.Main(m))
}
