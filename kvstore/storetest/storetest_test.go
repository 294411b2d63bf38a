package storetest_test

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// The contract holds for whole chains, through the API that programs use.
func TestChains(t *testing.T) {
	for _, chain := range []string{"Cache|Posix", "Cache|Segment", "Cache|Empty", "Posix", "Segment", "LMCache", "Cache|LMCache", "Cache|RtpLlm", "Cache|Kvcm", "Cache|Segment|Posix", "Segment|Posix", "Empty"} {
		t.Run(chain, func(t *testing.T) {
			storetest.Run(t, chain, storetest.Options{})
		})
	}
}

// It also holds for memory of a device, in every chain that takes it. KV3FS_SUITES=all, as
// at night, tests every sentence, and in more chains.
// The chain of a host that shares a 3FS with others, over a real mount and its rings.
func TestChainOnMount(t *testing.T) {
	d := daemontest.Serve(t)
	latest := ""
	storetest.Run(t, "Cache|Segment|Ds3fs", storetest.Options{Mount: func(t testing.TB, dir string) string {
		if dir != latest {
			d.Empty(t)
			latest = dir
		}
		return d.Mount
	}})
}

func TestChainsOnDevice(t *testing.T) {
	chains, all := []string{"Cache|Posix", "Gds"}, os.Getenv("KV3FS_SUITES") == "all"
	if all {
		chains = append(chains, "Cache|Segment", "Cache|Empty", "Cache|LMCache", "Cache|Gds", "Cache|RtpLlm", "Cache|Kvcm")
	}
	for _, chain := range chains {
		t.Run(chain, func(t *testing.T) {
			storetest.Run(t, chain, storetest.Options{OnDevice: true, Brief: !all, Configure: func(c *kvstore.Config) {
				if c.Cache == nil { // else the cache's is the host's by itself
					c.Gds.Device = onHost
				}
			}})
		})
	}
}

// onHost is a device whose memory is the host's.
var onHost = device.NewHost(device.HostOptions{})
