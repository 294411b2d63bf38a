// Package blockfiles stores each block in a file of its own: a temporary file becomes the
// block by a rename. A Format says where the files are and what they look like, so that
// the store shares them with another program, and an engine moves their bytes.
//
// Each root has directories that the other program does not read:
//
//	.kv3fs-temp/         blocks that are being written, unless the options name another
//	.kv3fs-sums/         checksums, see package sums
//	.kv3fs-quarantine/   the latest blocks that were found damaged
//	.kv3fs-spare/        blocks whose own place the file system cannot read
//
// Worker pools make all calls to the file system, so that no caller waits for a hanging
// file system beyond the timeout.
package blockfiles

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Options of Open.
type Options struct {
	Name   string // in Stats
	Layout kv.Layout

	// FileBlocks says that what the store takes for a block is a file with so many blocks of
	// a program's, each with an equal part of the shards. Default 1.
	FileBlocks int

	Namespace kv.Fingerprint
	Checksums kv.Checksums // auto

	// Roots are existing directories. Format says to which of them a block is written.
	// Blocks are read from wherever they are.
	Roots []string

	Format Format

	// TempDir is where blocks are while they are being written, below the same root.
	// Default .kv3fs-temp.
	TempDir string

	// SumsDir is where the checksum logs are, below the same root. Deployments in one
	// directory whose keys are equal, and whose files only their names tell apart, have
	// one each. Default sums.DirName.
	SumsDir string

	// FileMode is the mode of blocks' files, before the umask. Default 0644.
	FileMode os.FileMode

	// NamesTell means that the names of files say whose blocks they are. Keys and Delete
	// then include blocks of another program's, which no record gives a namespace.
	NamesTell bool

	// Engine moves the bytes. The store closes it.
	Engine transfer.Engine

	// Device is whose memory shards may name, nil for none. Engine then moves that, too, and
	// DeviceBytes returns a copy of such memory. DeviceCopies returns how much was copied
	// between the host and the device, and DeviceTransfers what moved between the device and
	// files.
	Device          device.Device
	DeviceBytes     func(at device.Place, sizeBytes int64) ([]byte, error)
	DeviceCopies    func() kv.DeviceCopies
	DeviceTransfers func() kv.DeviceTransfers

	// OpenFiles is how many files that no load is using stay open for the next one.
	OpenFiles int

	// Touch sets the modification time of loaded blocks: UCM's cleaner takes it for the
	// time of the last use.
	Touch bool

	RunningQueueDepth int           // shards accepted and not settled, 32768
	Timeout           time.Duration // 30 s

	// SweepAge is how old what a dead writer has left must be to be removed: 10 minutes, or more
	// where a living one may take longer. It must have been there, unchanged, when the sweep an hour before looked, or be 144
	// times as old.
	SweepAge time.Duration

	Lookups, Opens int // how many of each run at once: 16 and 32
	Places         int // how many blocks loads have open at once, and how many saves; see placesAllowed
}

func (o *Options) fillDefaults() error {
	o.FileBlocks = cmp.Or(o.FileBlocks, 1)
	one := kv.Layout{BlockBytes: o.Layout.BlockBytes / int64(o.FileBlocks), ShardBytes: o.Layout.ShardBytes}
	if err := one.Check(); err != nil {
		return err
	}
	if n := o.Layout.Shards(); n > sums.MostShards {
		return fmt.Errorf("kvstore: a file of %d blocks has %d shards; at most %d are possible: choose fewer blocks for each file", o.FileBlocks, n, sums.MostShards)
	}
	o.TempDir = cmp.Or(o.TempDir, kv3fs.TempDir)
	o.FileMode = cmp.Or(o.FileMode, 0o644)
	o.SumsDir = cmp.Or(o.SumsDir, sums.DirName)
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
	o.SweepAge = cmp.Or(o.SweepAge, max(10*time.Minute, 8*o.Timeout))
	o.Lookups = cmp.Or(o.Lookups, 16)
	o.Opens = cmp.Or(o.Opens, 32)
	o.Places = cmp.Or(o.Places, max(placesAllowed()/o.FileBlocks, leastPlaces))
	return nil
}
