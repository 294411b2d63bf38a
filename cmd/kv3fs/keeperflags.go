package main

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// keeperFlags are the flags of "serve" that limit the data directory.
type keeperFlags struct {
	Capacity      capacity      `placeholder:"SIZE" help:"How much the files may take, e.g. 10TiB, or 90% of the data directory's file system. What was used longest ago is removed to make room, and df of the mount shows this size. Only files that engines can do without go: docs/keeper.md. On a directory that several hosts share: docs/keep.md. Default: no limit; writes fail with ENOSPC once the disk is full."`
	HighWatermark float64       `default:"95" range:"1..100" placeholder:"PERCENT" help:"The part of the capacity, in percent, above which files are removed."`
	LowWatermark  float64       `default:"90" range:"1..100" placeholder:"PERCENT" help:"The part of the capacity, in percent, down to which they are removed then."`
	EvictionGrace time.Duration `placeholder:"DURATION" range:"1s..24h" help:"How long after its last change a file is left alone. Default: as long as the writers of its layout need, at least a minute; 10 minutes on a directory that several hosts share."`
	KeeperLease   time.Duration `default:"30s" range:"3s..1h" help:"On a directory that several hosts share, one with a --capacity keeps it: after how long without a sign of life from it another one does."`
}

func (f *keeperFlags) keeping() daemon.Keeping {
	return daemon.Keeping{Capacity: f.Capacity.Limit, HighPercent: f.HighWatermark, LowPercent: f.LowWatermark, Grace: f.EvictionGrace, Lease: f.KeeperLease}
}

func (f *keeperFlags) validate() error {
	if f.LowWatermark >= f.HighWatermark {
		return bad("low-watermark", "%v%% must be below --high-watermark, which is %v%%", f.LowWatermark, f.HighWatermark)
	}
	return nil
}

// capacity is the value of --capacity.
type capacity struct{ keeper.Limit }

// UnmarshalText parses a size or a part of the file system.
func (c *capacity) UnmarshalText(text []byte) (err error) {
	c.Limit, err = keeper.ParseLimit(string(text))
	return err
}
