package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// statCmd says all that a daemon knows: of itself, or of a file or directory.
type statCmd struct {
	operateFlags
	filterFlags
	Path  string `arg:"" optional:"" help:"A file or directory, or a pattern with flags that choose files. Default: the daemon's limits, and what it has removed; with such flags, all of the daemon's files."`
	Curve bool   `env:"-" help:"Show what a smaller or larger capacity would have served, as estimated from a sample of the uses."`
}

// statReport is what the command prints as JSON: one of its parts.
type statReport struct {
	State *keeper.State `json:"state,omitempty"`
	Curve *admin.Curve  `json:"curve,omitempty"`
	Total *keeper.Total `json:"total,omitempty"`
	keeper.Description
}

// Validate rejects what else is given with --curve.
func (c *statCmd) Validate() error {
	switch {
	case c.Curve && c.Path != "":
		return bad("curve", "it is of all the daemon's files: leave out the path")
	case c.Curve && c.given():
		return bad("curve", "it is of all the daemon's files: leave out the flags that choose some")
	}
	return c.check()
}

// Run prints it.
func (c *statCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "stat"
	client, at, err := c.connectTo(ctx, c.Path)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	var report statReport
	switch {
	case c.given():
		report.Total = &keeper.Total{}
		*report.Total, err = client.Total(ctx, c.selection([]string{at}))
	case c.Path != "":
		report.Description, err = client.Describe(ctx, at)
	default:
		report.State = &keeper.State{}
		*report.State, err = client.State(ctx)
		if err == nil && c.Curve {
			report.Curve = &admin.Curve{}
			*report.Curve, err = client.Curve(ctx)
		}
	}
	switch {
	case err != nil:
		return c.failed(ctx, out, command, nil, err)
	case c.JSON:
		return writeJSON(out, command, false, report)
	}
	return report.write(out)
}

func (r *statReport) write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	switch {
	case r.Curve != nil:
		if len(r.Curve.Points) == 0 {
			_, err := fmt.Fprintln(out, "No file that may go was used since the start, so nothing is known yet.")
			return err
		}
		writeCurve(out, r)
		return nil
	case r.Total != nil:
		writeTotal(t, r.Total)
		return t.Flush()
	case r.State != nil:
		writeState(t, r.State)
	case r.File != nil:
		writeFile(t, r.File)
	case r.Directory != nil:
		fmt.Fprintf(t, "directory\t%s\n", printable(r.Directory.Path))
		fmt.Fprintf(t, "takes\t%s in %s files\n", bytesText(r.Directory.Bytes), humanize.Comma(r.Directory.Files))
		if r.Directory.LimitBytes > 0 {
			fmt.Fprintf(t, "limit of its own\t%s\n", bytesText(r.Directory.LimitBytes))
		}
	}
	if r.State == nil {
		room := "what the disk has"
		if r.RoomBytes != nil {
			room = bytesText(*r.RoomBytes)
		}
		fmt.Fprintf(t, "room left there\t%s\n", room)
	}
	return t.Flush()
}

func writeState(t io.Writer, s *keeper.State) {
	limit := "none but the disk"
	if s.LimitBytes > 0 {
		limit = bytesText(s.LimitBytes)
		if strings.HasSuffix(s.Capacity, "%") {
			limit += " (" + s.Capacity + " of the file system, or what others leave of it)"
		}
	}
	found := "all found"
	if !s.Scanned {
		found = "the scan after the start is still finding files"
	}
	fmt.Fprintf(t, "data directory\t%s\n", printable(s.Dir))
	fmt.Fprintf(t, "capacity\t%s\n", limit)
	fmt.Fprintf(t, "used\t%s %s in %s files and %s directories; %s\n", bytesText(s.UsedBytes), percentOf(s.UsedBytes, s.LimitBytes), humanize.Comma(s.Files), humanize.Comma(s.Directories), found)
	fmt.Fprintf(t, "set aside for writes\t%s; %s writers wait for room\n", bytesText(s.ReservedBytes), humanize.Comma(s.WaitingWriters))
	fmt.Fprintf(t, "watermarks\tfiles go above %g%%, down to %g%%, of the capacity and of each quota\n", s.HighPercent, s.LowPercent)
	fmt.Fprintf(t, "rules\t%d quotas, %d TTLs, %d pins\n", s.Quotas, s.TTLs, s.Pins)
	fmt.Fprintf(t, "since the start\t%s ago\n", unusedText(s.RunsSinceSeconds))
	fmt.Fprintf(t, "  removed for room\t%s files of %s\n", humanize.Comma(s.EvictedFiles), bytesText(s.EvictedBytes))
	fmt.Fprintf(t, "  removed by TTL\t%s files\n", humanize.Comma(s.ExpiredFiles))
	fmt.Fprintf(t, "  removed incomplete\t%s files that their writers left behind\n", humanize.Comma(s.ReapedFiles))
	fmt.Fprintf(t, "  removed on request\t%s files\n", humanize.Comma(s.RequestedFiles))
	fmt.Fprintf(t, "  kept after all\t%s files that were to go were in use, young or changed\n", humanize.Comma(s.KeptFiles))
	fmt.Fprintf(t, "  writes that waited\t%s\n", humanize.Comma(s.WaitedWrites))
	fmt.Fprintf(t, "  writes without room\t%s\n", humanize.Comma(s.RefusedWrites))
	if s.UnreadableFiles > 0 {
		fmt.Fprintf(t, "  not readable\t%s entries, which are not counted; the log names them\n", humanize.Comma(s.UnreadableFiles))
	}
}

func writeTotal(out io.Writer, t *keeper.Total) {
	fmt.Fprintf(out, "chosen\t%s files of %s\n", humanize.Comma(t.Files), bytesText(t.Bytes))
	if t.Files == 0 {
		return
	}
	fmt.Fprintf(out, "unused\tfrom %s to %s\n", unusedText(t.LeastUnusedSecs), unusedText(t.MostUnusedSecs))
	fmt.Fprintf(out, "used\t%s times since they were written; %s files never\n", humanize.Comma(t.Uses), humanize.Comma(t.NeverUsedFiles))
	fmt.Fprintf(out, "pinned\t%s files of %s\n", humanize.Comma(t.PinnedFiles), bytesText(t.PinnedBytes))
	fmt.Fprintf(out, "open\t%s files\n", humanize.Comma(t.InUseFiles))
	fmt.Fprintf(out, "temporary\t%s files\n", humanize.Comma(t.TemporaryFiles))
}

func writeFile(t io.Writer, f *keeper.FileDescription) {
	fmt.Fprintf(t, "file\t%s\n", printable(f.Path))
	fmt.Fprintf(t, "owner\t%s\n", f.Owner)
	for _, field := range []struct{ name, text string }{{"model", f.Model}, {"element type", f.DType}, {"key", f.Key}} {
		if field.text != "" {
			fmt.Fprintf(t, "%s\t%s\n", field.name, printable(field.text))
		}
	}
	if f.WorldSize > 0 {
		fmt.Fprintf(t, "rank\t%d of %d\n", f.Rank, f.WorldSize)
	}
	fmt.Fprintf(t, "size\t%s (%d bytes); %s on the disk\n", bytesText(f.SizeBytes), f.SizeBytes, bytesText(f.Bytes))
	if f.Names > 1 {
		fmt.Fprintf(t, "names\t%d\n", f.Names)
	}
	for i, p := range f.Parts {
		name, missing := "", ""
		if i == 0 {
			name = "parts"
		}
		if p.Missing {
			missing = "  (missing)"
		}
		fmt.Fprintf(t, "%s\t%s%s\n", name, printable(p.Path), missing)
	}
	fmt.Fprintf(t, "changed\t%s\n", f.Modified.Format(time.RFC3339))
	fmt.Fprintf(t, "used\t%s ago; %d times since it was written\n", unusedText(f.UnusedSeconds), f.Uses)
	if f.Trouble != "" {
		fmt.Fprintf(t, "incomplete\t%s\n", troubleOf(f.Listed))
	}
	verdict := "stays"
	if f.MayGo {
		verdict = "may go"
	}
	fmt.Fprintf(t, "%s\t%s\n", verdict, f.Why)
}

func writeCurve(out io.Writer, r *statReport) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "capacity\tserved\t  ")
	for _, p := range r.Curve.Points {
		bar := strings.Repeat("#", int(p.HitRatio*40+.5))
		if p.CapacityBytes == r.State.LimitBytes {
			bar += " <- now"
		}
		fmt.Fprintf(t, "%s\t%.1f%%\t  %s\n", bytesText(p.CapacityBytes), 100*p.HitRatio, bar)
	}
	_ = t.Flush() // whoever reads it has gone
	fmt.Fprintf(out, "\nIt did serve %.1f%% of %s recent uses.\n", 100*r.Curve.HitRatio, humanize.Comma(int64(r.Curve.Uses+.5)))
}
