package restarts

import (
	"fmt"
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(workerVariable); name != "" {
		if err := work(name, os.Args[1]); err != nil {
			fmt.Println(name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(daemontest.Main(m))
}
