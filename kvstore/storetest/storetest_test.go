package storetest_test

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// The contract holds for whole chains, through the API that programs use.
func TestChains(t *testing.T) {
	for _, chain := range []string{"Cache|Posix", "Cache|Segment", "Cache|Empty", "Posix", "Segment", "LMCache", "Cache|LMCache", "Cache|RtpLlm", "Cache|Kvcm", "Empty"} {
		t.Run(chain, func(t *testing.T) {
			storetest.Run(t, chain, storetest.Options{})
		})
	}
}

// It also holds for memory of a device, in every chain that takes it.
func TestChainsOnDevice(t *testing.T) {
	for _, chain := range []string{"Cache|Posix", "Cache|Segment", "Cache|Empty"} {
		t.Run(chain, func(t *testing.T) {
			storetest.Run(t, chain, storetest.Options{OnDevice: true})
		})
	}
}
