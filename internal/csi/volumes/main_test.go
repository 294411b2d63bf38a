package volumes

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }
