package kvstore

import "time"

// Defaults, for files and for Config alike. Those of UCM's keys are UCM's, except for the rings,
// which have many requests in flight here.
const (
	defaultTimeout        = 30 * time.Second
	defaultTransfers      = 32
	defaultPosixTransfers = 128
	defaultWaiting        = 1024
	defaultWaitingBlocks  = 8192
	defaultAccepted       = 32768
	defaultDeviceStreams  = 4
	defaultRings          = 2
	defaultRingEntries    = 64

	defaultPagesURL      = "http://127.0.0.1:18000"
	defaultCacheGB       = 64
	defaultSharedCacheGB = 256
	defaultBufferBytes   = 64 << 20
	defaultFillBytes     = 256 << 20

	gib = 1 << 30
)

// fillDefaults sets what is zero in the options of the stores of a chain, in copies of them. What
// depends on the host is left to the stores.
func (c *Config) fillDefaults(chain []string) {
	for _, store := range chain {
		switch store {
		case cacheName:
			c.Cache = copyOrNew(c.Cache)
			fill(&c.Cache.WaitingBlocks, defaultWaitingBlocks)
			fill(&c.Cache.DeviceStreams, defaultDeviceStreams)
		case posixName:
			c.Posix = copyOrNew(c.Posix)
			fill(&c.Posix.Transfers, defaultPosixTransfers)
			fill(&c.Posix.WaitingTransfers, defaultWaiting)
			fill(&c.Posix.AcceptedShards, defaultAccepted)
		case ds3fsName:
			c.Ds3fs = copyOrNew(c.Ds3fs)
			fill(&c.Ds3fs.Rings, defaultRings)
			fill(&c.Ds3fs.RingEntries, defaultRingEntries)
			fill(&c.Ds3fs.WaitingTransfers, defaultWaiting)
			fill(&c.Ds3fs.AcceptedShards, defaultAccepted)
		case segmentName:
			c.Segment = copyOrNew(c.Segment)
			fill(&c.Segment.Transfers, defaultTransfers)
			fill(&c.Segment.WaitingTransfers, defaultWaiting)
			fill(&c.Segment.WaitingBlocks, defaultWaitingBlocks)
			fill(&c.Segment.FillBytes, defaultFillBytes)
		case pagesName:
			c.Pages = copyOrNew(c.Pages)
			fill(&c.Pages.URL, defaultPagesURL)
			fill(&c.Pages.Transfers, defaultTransfers)
			fill(&c.Pages.WaitingBatches, defaultWaiting)
			fill(&c.Pages.RingEntries, defaultRingEntries)
		}
	}
}

func copyOrNew[T any](o *T) *T {
	to := new(T)
	if o != nil {
		*to = *o
	}
	return to
}

func fill[T comparable](to *T, value T) {
	var none T
	if *to == none {
		*to = value
	}
}
