// Package ucmfiles stores each block in a file of its own, as UCM's stores do: a temporary
// file becomes the block by a rename. Packages files and ring say where the files are and
// what moves their bytes.
//
// Worker pools make all calls to the file system, so that no caller waits for a hanging
// file system beyond the timeout.
package ucmfiles

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Options of Open.
type Options struct {
	Name      string // in Stats
	Layout    kv.Layout
	Namespace kv.Fingerprint
	Checksums kv.Checksums // auto

	// Roots are existing directories. The last 8 bytes of a key, as a big-endian number
	// modulo the number of roots, choose the one that its block is written to. Blocks are
	// read from wherever they are: UCM distributes them differently, by a hash of its C++
	// library.
	Roots []string

	// DirDigits is how many hexadecimal digits of the key name the directory of a block,
	// below its root; with 0 it is called data.
	DirDigits int

	// TempDir is where blocks are while they are being written, below the same root.
	TempDir string

	// UCMTempDir is where UCM writes blocks, below the same root, under their own names.
	// Without it, it writes them where they are to be, under their names with ".tmp".
	UCMTempDir string

	// Engine moves the bytes. The store closes it.
	Engine transfer.Engine

	// OpenFiles is how many files that no load is using stay open for the next one.
	OpenFiles int

	// Touch sets the modification time of loaded blocks: UCM's cleaner takes it for the
	// time of the last use.
	Touch bool

	RunningQueueDepth int           // shards accepted and not settled, 32768
	Timeout           time.Duration // 30 s

	Lookups, Opens int // how many of each run at once: 16 and 32
	Places         int // how many blocks loads have open at once, and how many saves; see placesAllowed
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
			return fmt.Errorf("kvstore: %s is %d; choose 0 or more", n.name, n.value)
		}
	}
	o.RunningQueueDepth = cmp.Or(o.RunningQueueDepth, 32768)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Lookups = cmp.Or(o.Lookups, 16)
	o.Opens = cmp.Or(o.Opens, 32)
	o.Places = cmp.Or(o.Places, placesAllowed())
	return nil
}
