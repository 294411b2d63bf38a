package gpuio

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// A device that refuses copies costs no pinned memory: lanes are used again.
func TestRefusedCopiesKeepNoMemory(t *testing.T) {
	broken := errors.New("broken")
	var allocated atomic.Int64
	d := device.NewHost(device.HostOptions{
		Refuse: func(device.Copy) error { return broken },
		Memory: func(method string, sizeBytes int64) error {
			if method == "FreeHost" {
				sizeBytes = -sizeBytes
			}
			allocated.Add(sizeBytes)
			return nil
		},
	})
	m := New(Options{Device: d})
	b := d.Wrap(make([]byte, 8))
	for range 5 {
		if _, err := m.Bytes(b.At(0), 8); !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	if n := allocated.Load(); n != stageBytes {
		t.Errorf("%d bytes of pinned memory for one copy at a time, want %d", n, stageBytes)
	}
	if err := m.Close(); err != nil || allocated.Load() != 0 {
		t.Errorf("after Close %d bytes are pinned, %v", allocated.Load(), err)
	}
}
