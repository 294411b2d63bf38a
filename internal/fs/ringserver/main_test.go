package ringserver

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) {
	if steps := os.Getenv(containerEnv); steps != "" {
		if err := contained(strings.Fields(steps)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaktest.Main(m))
}
