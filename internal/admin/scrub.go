package admin

import (
	"context"
	"fmt"
)

// Scrubber reads files below a directory, or one file, to find damage. rate is in bytes for each second, 0 for
// no limit. It calls fn from time to time, and ends with its error.
type Scrubber interface {
	Scrub(ctx context.Context, path string, rate int64, fn func(Scrubbed) error) error
}

// Scrubbed is damage that was found, or how far a scrub has come. The last one says what it has found in all.
type Scrubbed struct {
	Damage   *Damage        `json:"damage,omitempty"`
	Progress *ScrubProgress `json:"progress,omitempty"`
}

// Damage is a range of a file that is not what was written, or a file that cannot be read.
type Damage struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	// Certain says that it was right before, and nobody has written to the file since.
	Certain bool   `json:"certain"`
	Error   string `json:"error,omitempty"`
}

// ScrubProgress is how far a scrub has come.
type ScrubProgress struct {
	Files         int64 `json:"files"`
	ReadBytes     int64 `json:"read_bytes"`
	VerifiedBytes int64 `json:"verified_bytes"` // those that have checksums
	TotalBytes    int64 `json:"total_bytes"`    // of all files, as they were counted first
	Damaged       int64 `json:"damaged"`        // ranges that are certainly damaged
	Doubtful      int64 `json:"doubtful"`       // other ranges that are not what was to be written
	Unreadable    int64 `json:"unreadable"`     // files
}

type scrubRequest struct {
	Path string `json:"path"`
	Rate int64  `json:"rate"`
}

// mostScrubs at once: one may take a day, and must leave room for other calls.
const mostScrubs = mostCalls / 4

// Scrubs has the server offer scrubs. Call it before Start.
func (s *Server) Scrubs(by Scrubber) {
	room := make(chan struct{}, mostScrubs)
	s.handle("scrub", call(func(ctx context.Context, r scrubRequest, send func(any) error) error {
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		default:
			return fmt.Errorf("%d scrubs run already, which are all that the daemon does at once; wait for one to end, or end it", mostScrubs)
		}
		who, _ := CallerOf(ctx)
		s.audit([]any{"call", "scrub", "path", r.Path, "rate", r.Rate}, who, nil) // now, since it may take a day
		return by.Scrub(ctx, r.Path, r.Rate, func(v Scrubbed) error { return send(v) })
	}))
}

// Scrub has the daemon read files below a path, or one file, and calls fn with what it finds.
func (c *Client) Scrub(ctx context.Context, path string, rate int64, fn func(Scrubbed) error) error {
	return values(ctx, c, "scrub", scrubRequest{path, rate}, fn)
}
