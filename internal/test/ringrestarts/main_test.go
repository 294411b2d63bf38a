package ringrestarts

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }
