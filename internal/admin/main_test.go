package admin

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func TestMain(m *testing.M) {
	os.Exit(hostile.Main(m, map[string]hostile.Program{"connect": connect}))
}
