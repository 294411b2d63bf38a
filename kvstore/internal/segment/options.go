package segment

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// Options are the options of Open. Dir, Layout and CapacityBytes must be given.
type Options struct {
	// Dir is created if it does not exist. It must be empty at first, and nothing else may
	// ever be put into it.
	Dir string

	// Layout is the size of blocks. A directory keeps the layout it was first opened with.
	Layout kv.Layout

	// Namespace is what the blocks belong to. Those of another one stay in the directory
	// until they are recycled, and are not found.
	Namespace kv.Fingerprint

	// CapacityBytes is the most that the directory takes on the disk; it takes all of it
	// from the beginning. If it is smaller than last time, the oldest segments are deleted.
	CapacityBytes int64

	// SegmentBytes is the size of a segment. 0 means the size that the directory has; for a
	// new one, 1 GiB, or less where the capacity is small. One segment is evicted at a time.
	SegmentBytes int64

	// CarryFraction bounds how many of a recycled segment's blocks are kept: those that
	// were loaded most often. 0 means 0.25; the maximum is 0.5; negative means none.
	CarryFraction float64

	// DirectIO, Streams and WaitingQueueDepth are posix.Options'.
	DirectIO          bool
	Streams           int
	WaitingQueueDepth int

	// Timeout bounds every wait; 30 s. A block whose shards stop coming is dropped after
	// this time.
	Timeout time.Duration

	// Checksums: ChecksumsOff loads without comparing them. Identities are always
	// compared, and checksums always recorded.
	Checksums kv.Checksums

	// Engine moves blocks; nil means system calls. Open takes it over, also when it fails.
	Engine transfer.Engine

	// Logger gets a warning for each segment that is set aside.
	Logger *slog.Logger

	reserve   func(f *os.File, sizeBytes int64) error // a test's, and so is
	fdatasync func(f *os.File) error
}

const (
	defaultTimeout = 30 * time.Second
	defaultCarry   = 0.25
	maxCarry       = 0.5
)

// complete fills in defaults and returns what is wrong with the options.
func (o *Options) complete() error {
	if err := o.Layout.Check(); err != nil {
		return err
	}
	switch o.Checksums {
	case "", kv.ChecksumsAuto, kv.ChecksumsRequire, kv.ChecksumsOff:
	default:
		return fmt.Errorf("segment store: checksums %q; auto, require or off", o.Checksums)
	}
	switch {
	case o.CapacityBytes <= 0:
		return fmt.Errorf("segment store: a capacity of %d bytes; say how much of the disk it may take", o.CapacityBytes)
	case o.SegmentBytes < 0 || o.Timeout < 0:
		return fmt.Errorf("segment store: segments of %d bytes, a timeout of %v: neither may be negative", o.SegmentBytes, o.Timeout)
	case o.CarryFraction > maxCarry:
		return fmt.Errorf("segment store: a carry fraction of %v; more than %v would leave too little space for new blocks", o.CarryFraction, maxCarry)
	case o.CarryFraction == 0:
		o.CarryFraction = defaultCarry
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.reserve == nil {
		o.reserve = reserve
	}
	if o.fdatasync == nil {
		o.fdatasync = func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
	}
	if o.Engine == nil {
		o.Engine = posix.New(posix.Options{
			Streams: o.Streams, WaitingQueueDepth: o.WaitingQueueDepth, Timeout: o.Timeout, DirectIO: o.DirectIO,
		})
	}
	return nil
}
