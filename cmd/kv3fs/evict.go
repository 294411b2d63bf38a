package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// evictCmd removes files now.
type evictCmd struct {
	operateFlags
	filterFlags
	Paths  []string `arg:"" optional:"" name:"path" help:"Files, directories (all files below, not the directories) or patterns such as '/mnt/3fs/models/*.data', quoted. Default: all of the daemon's files that the flags choose, and --yes or --dry-run is needed."`
	DryRun bool     `env:"-" help:"Remove nothing; say what would go and what would stay."`
	Yes    bool     `env:"-" help:"Confirm the removal where no path is given."`
}

// Validate rejects what would remove more than was meant.
func (c *evictCmd) Validate() error {
	switch {
	case len(c.Paths) == 0 && !c.filterFlags.given():
		return errors.New("expected \"<path> ...\" or a flag that chooses files, such as --older-than: the path of the mount, or of the data directory, means all")
	case len(c.Paths) == 0 && !c.DryRun && !c.Yes:
		return bad("yes", "without a path, evict removes what the flags choose from all of the daemon's files; give it to confirm, or see with --dry-run what would go")
	}
	return c.check()
}

// evictReport is what the command prints as JSON.
type evictReport struct {
	Files []keeper.Removal `json:"files"`
	evictTotals
}

type evictTotals struct {
	DryRun       bool  `json:"dry_run"`
	RemovedFiles int64 `json:"removed_files"`
	RemovedBytes int64 `json:"removed_bytes"`
	StayingFiles int64 `json:"staying_files"`
}

func (t *evictTotals) count(r keeper.Removal) {
	if r.Stays != "" {
		t.StayingFiles++
		return
	}
	t.RemovedFiles++
	t.RemovedBytes += r.Bytes
}

// Run removes them.
func (c *evictCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "evict"
	client, at, err := c.connect(ctx, c.Paths...)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	totals := evictTotals{DryRun: c.DryRun}
	if c.JSON {
		return streamed(ctx, out, command, "files", func(add func(any) error) (any, error) {
			err := client.Evict(ctx, c.selection(at), c.DryRun, func(r keeper.Removal) error {
				totals.count(r)
				return add(r)
			})
			return totals, err
		})
	}
	buffered, flush := lineWriter(out)
	gone, went := "removed", "removed"
	if c.DryRun {
		gone, went = "would go", "would be removed"
	}
	err = client.Evict(ctx, c.selection(at), c.DryRun, func(r keeper.Removal) error {
		totals.count(r)
		var err error
		if r.Stays != "" {
			_, err = fmt.Fprintf(buffered, "%-8s %9s  %s: %s\n", "stays", bytesText(r.Bytes), printable(r.Path), r.Stays)
		} else {
			_, err = fmt.Fprintf(buffered, "%-8s %9s  %s\n", gone, bytesText(r.Bytes), printable(r.Path))
		}
		return err
	})
	flush()
	if totals.RemovedFiles+totals.StayingFiles > 0 || err == nil {
		fmt.Fprintf(out, "%s files of %s %s; %s stay.\n", humanize.Comma(totals.RemovedFiles), bytesText(totals.RemovedBytes), went, humanize.Comma(totals.StayingFiles))
	}
	return err
}
