package tier

import (
	"fmt"
	"log/slog"
	"time"
)

// Options are the options of New. The zero value of a field means its default.
type Options struct {
	// WriteThrough makes a save wait for the far store, too.
	WriteThrough bool

	// WaitingBlocks is how many blocks may wait to be sent to the far store; 8192. Saves
	// wait while there are more, unless the far store keeps failing or does not answer: then a block
	// that finds no place stays near alone.
	WaitingBlocks int

	// FillBytes is the memory for blocks that come from far, until the near store has them;
	// 256 MiB, and at least four blocks. What finds no place there is read from far again,
	// in the background.
	FillBytes int64

	// Timeout bounds every wait in which nothing progresses; 30 s.
	Timeout time.Duration

	// Logger receives damage that was healed, and when the far store stops and begins to
	// answer. Default: nothing is logged.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	if o.WaitingBlocks == 0 {
		o.WaitingBlocks = 8192
	}
	if o.FillBytes == 0 {
		o.FillBytes = 256 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.WaitingBlocks < 0 || o.FillBytes < 0 || o.Timeout < 0 {
		return fmt.Errorf("kvstore: waiting blocks %d, memory for blocks from far %d, timeout %v: none may be below 0", o.WaitingBlocks, o.FillBytes, o.Timeout)
	}
	return nil
}
