package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"

	"github.com/kv3fs/kv3fs/internal/admin"
)

// scrubCmd reads files to compare them with their checksums.
type scrubCmd struct {
	operateFlags
	Path       string   `arg:"" optional:"" help:"A file, or a directory with all below it. Default: all of the daemon's."`
	Rate       byteSize `default:"100MiB" placeholder:"SIZE" range:"1KiB..1TiB" help:"How much is read in a second."`
	NoProgress bool     `env:"-" help:"Show no progress bar, even on a terminal."`
}

// Help is what "kv3fs scrub --help" adds to the flags.
func (*scrubCmd) Help() string {
	return `For example:

  kv3fs scrub                              # all files, at 100 MiB/s
  kv3fs scrub --rate 1GiB /mnt/3fs/models  # those of a directory, faster

The daemon reads the files past its page cache and compares them with the checksums that it keeps
(docs/integrity.md). What is damaged is listed, and treated as if a ring had met it.
The exit status is 1 if there is any.`
}

// scrubReport is what the command prints as JSON.
type scrubReport struct {
	Damage []admin.Damage `json:"damage"`
	scrubTotals
}

type scrubTotals struct {
	admin.ScrubProgress
}

// Run scrubs.
func (c *scrubCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "scrub"
	client, path, err := c.connectTo(ctx, c.Path)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	var totals scrubTotals
	if c.JSON {
		err = streamed(ctx, out, command, "damage", func(add func(any) error) (any, error) {
			err := client.Scrub(ctx, path, int64(c.Rate), func(s admin.Scrubbed) error { return totals.take(s, func(d admin.Damage) error { return add(d) }) })
			return totals, err
		})
	} else {
		err = c.scrub(ctx, out, client, path, &totals)
	}
	if err == nil && totals.Damaged+totals.Doubtful+totals.Unreadable > 0 {
		return exitStatus(exitFailed)
	}
	return err
}

// take counts one message, and calls fn with damage.
func (t *scrubTotals) take(s admin.Scrubbed, fn func(admin.Damage) error) error {
	if s.Progress != nil {
		t.ScrubProgress = *s.Progress
	}
	if s.Damage != nil {
		return fn(*s.Damage)
	}
	return nil
}

// scrub prints for people.
func (c *scrubCmd) scrub(ctx context.Context, out io.Writer, client *admin.Client, path string, totals *scrubTotals) error {
	const unit = 1 << 20 // of the bar, whose counts are ints
	bar := newBar("scrub", "MiB", -1, c.NoProgress, progressbar.OptionShowIts(), progressbar.OptionSetItsString("MiB"))
	err := client.Scrub(ctx, path, int64(c.Rate), func(s admin.Scrubbed) error {
		if s.Damage != nil {
			bar.clear()
		}
		err := totals.take(s, func(d admin.Damage) error {
			var err error
			switch {
			case d.Error != "":
				_, err = fmt.Fprintf(out, "unreadable  %s: %s\n", printable(d.Path), d.Error)
			case d.Certain:
				_, err = fmt.Fprintf(out, "damaged     %s: %d bytes at %d\n", printable(d.Path), d.Bytes, d.Offset)
			default:
				_, err = fmt.Fprintf(out, "doubtful    %s: %d bytes at %d\n", printable(d.Path), d.Bytes, d.Offset)
			}
			return err
		})
		bar.done(int(min(totals.ReadBytes/unit, math.MaxInt32)), int(min(max(totals.TotalBytes/unit, 1), math.MaxInt32)))
		return err
	})
	bar.clear()
	if totals.Files > 0 || err == nil {
		fmt.Fprintf(out, "%s files, %s read, %s of it with checksums: %s damaged, %s doubtful ranges, %s unreadable files.\n",
			humanize.Comma(totals.Files), bytesText(totals.ReadBytes), bytesText(totals.VerifiedBytes),
			humanize.Comma(totals.Damaged), humanize.Comma(totals.Doubtful), humanize.Comma(totals.Unreadable))
	}
	return err
}
