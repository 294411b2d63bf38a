package kvstore

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) {
	if chain := os.Getenv(childOf); chain != "" {
		if err := child(chain, os.Getenv(childDir)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		os.Exit(0)
	}
	os.Exit(daemontest.Main(m))
}
