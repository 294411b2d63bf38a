// Package ucmfiles keeps each block in a file of its own, as UCM's stores do: a
// temporary file becomes the block by a rename. Package files and package ring say
// where the files are and what moves their bytes.
//
// Everything that asks the file system is done by crews, so that one that hangs
// holds up nobody for longer than the timeout.
package ucmfiles

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Options of Open.
type Options struct {
	Name      string // in Stats
	Layout    kv.Layout
	Namespace kv.Fingerprint
	Checksums kv.Checksums // auto

	// Roots are directories that exist. A block is written to the one that the last 8
	// bytes of its key say, as a big-endian number modulo how many there are, and read
	// from wherever it is: UCM distributes otherwise, by a hash of its C++ library.
	Roots []string

	// DirDigits is how many hexadecimal digits of the key name the directory of a block,
	// below its root; with 0 it is called data.
	DirDigits int

	// TempDir is where blocks are while they are written, below the same root.
	TempDir string

	// Engine moves the bytes. The store closes it.
	Engine transfer.Engine

	// OpenFiles is how many files stay open that no load is using, for the next one.
	OpenFiles int

	// Touch sets the time of modification of what is loaded, by which UCM's cleaner
	// knows what was used last.
	Touch bool

	RunningQueueDepth int           // shards accepted and not settled, 32768
	Timeout           time.Duration // 30 s

	Lookups, Opens int // of each so many at once: 16 and 32
}

func (o *Options) fillDefaults() error {
	if err := o.Layout.Check(); err != nil {
		return err
	}
	o.Checksums = cmp.Or(o.Checksums, kv.ChecksumsAuto)
	switch o.Checksums {
	case kv.ChecksumsAuto, kv.ChecksumsRequire, kv.ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: checksums %q are unknown; use auto, require or off", o.Checksums)
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"running_queue_depth", int64(o.RunningQueueDepth)}, {"timeout_ms", int64(o.Timeout)}, {"open files", int64(o.OpenFiles)},
	} {
		if n.value < 0 {
			return fmt.Errorf("kvstore: a negative number for %s", n.name)
		}
	}
	o.RunningQueueDepth = cmp.Or(o.RunningQueueDepth, 32768)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Lookups = cmp.Or(o.Lookups, 16)
	o.Opens = cmp.Or(o.Opens, 32)
	return nil
}
