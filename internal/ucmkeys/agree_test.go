package ucmkeys_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
	"github.com/kv3fs/kv3fs/kvstore"
)

// keys are those that UCM's documents and code have for the two chains, and the chain that
// reads each.
var keys = map[string]string{
	"timeout_ms": "Cache|Ds3fs", "stream_number": "Cache|Ds3fs", "waiting_queue_depth": "Cache|Ds3fs", "running_queue_depth": "Cache|Ds3fs",
	"ior_entries": "Cache|Ds3fs", "numa_id": "Cache|Ds3fs", "cache_buffer_capacity_gb": "Cache|Ds3fs", "cache_stream_number": "Cache|Ds3fs",
	"buffer_size": "Cache|Ds3fs", "posix_data_trans_concurrency": "Cache|Posix", "data_dir_shard_bytes": "Cache|Posix",
}

// file is a file of UCM's with one more key.
func file(chain, key, value string) []byte {
	return fmt.Appendf(nil, "ucm_connectors:\n  - ucm_connector_name: UcmPipelineStore\n    ucm_connector_config:\n"+
		"      store_pipeline: %q\n      storage_backends: /mnt/3fs\n      %s: %s\n", chain, key, value)
}

// The store takes a value if, and only if, the doctor finds nothing that fails.
func TestStoreAndDoctorAgree(t *testing.T) {
	for key, chain := range keys {
		r, known := ucmkeys.RangeOf(key)
		if !known {
			t.Errorf("%s has no range", key)
			continue
		}
		values := map[string]bool{fmt.Sprint(r.Least): true, fmt.Sprint(r.Most): true, "some": false, "1.5": false, "[1]": false}
		if r.Least > math.MinInt64 {
			values[fmt.Sprint(r.Least-1)] = false
		}
		if r.Most < math.MaxInt64 {
			values[fmt.Sprint(r.Most+1)] = false
		}
		if key == "buffer_size" {
			values["64GB"], values["64 GiB"], values["64 parsecs"], values["8388608TB"] = true, true, false, false
		}
		for value, good := range values {
			src := file(chain, key, value)
			_, _, err := kvstore.ReadConfig(src)
			if (err == nil) != good {
				t.Errorf("the store: %s: %s: %v", key, value, err)
			}
			if err != nil && !strings.Contains(err.Error(), key) {
				t.Errorf("the store does not name %s: %v", key, err)
			}
			c, err := engineconfig.Read(engineconfig.UCM, "ucm.yaml", src, engineconfig.Params{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			failed := ""
			for _, p := range c.Problems {
				if p.Severity == engineconfig.Failure && strings.HasSuffix(p.Key, "."+key) {
					failed = p.What
				}
			}
			// A cache of less than the engine needs fails for a reason of its own.
			if (failed == "") != good {
				t.Errorf("the doctor: %s: %s: %q", key, value, failed)
			}
		}
	}
}
