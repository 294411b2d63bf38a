package keeper

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// Silent says how to keep a directory that others serve and use, so that nobody tells of changes and uses: the
// keeper looks itself, and goes by the times that the file system has.
type Silent struct {
	// Atime: files' atimes tell of uses. Otherwise their mtimes alone do.
	Atime bool

	// RefreshEvery is how often the keeper looks for what has changed, beside the scans of everything. 0: a minute.
	RefreshEvery time.Duration

	// LooksPerSecond bounds how many entries scans look at in a second. 0: no bound.
	LooksPerSecond int

	// Behind is by how much the clock that mtimes are from may be behind this host's: files are
	// left alone for so much longer.
	Behind time.Duration

	// May is asked right before each file is removed; an error keeps it. nil: all may.
	May func() error
}

func (s *Silent) fill() {
	if s != nil && s.RefreshEvery == 0 {
		s.RefreshEvery = time.Minute
	}
}

func (s *Silent) inventory() *inventory.Silent {
	if s == nil {
		return nil
	}
	return &inventory.Silent{Atime: s.Atime, PerSecond: s.LooksPerSecond, May: s.May}
}

// ticks says when to look for changes; never if nil.
func (s *Silent) ticks() (ticks <-chan time.Time, stop func()) {
	if s == nil {
		return nil, func() {}
	}
	t := time.NewTicker(s.RefreshEvery)
	return t.C, t.Stop
}

func (s *Silent) behind() time.Duration {
	if s == nil {
		return 0
	}
	return max(0, s.Behind)
}
