package csi_test

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(ringEnv); path != "" {
		os.Exit(ringClient(path))
	}
	os.Exit(daemontest.Main(m))
}
