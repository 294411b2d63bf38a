package cuda

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// requireGPU makes a machine without a GPU an error. The script gpu sets it.
const requireGPU = "KV3FS_REQUIRE_GPU"

// gpu opens a real device, and skips the test where there is none.
func gpu(t *testing.T) *Device {
	t.Helper()
	d, err := Open(Options{})
	if err != nil && os.Getenv(requireGPU) != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func TestContractOnGPU(t *testing.T) {
	for _, chain := range []string{"Cache|Segment", "Gds"} {
		t.Run(chain, func(t *testing.T) {
			storetest.Run(t, chain, storetest.Options{OnDevice: true, Configure: onto(gpu(t))})
		})
	}
}
