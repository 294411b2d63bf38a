package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// lsCmd lists files.
type lsCmd struct {
	operateFlags
	filterFlags
	Paths  []string `arg:"" optional:"" name:"path" help:"Directories, files or patterns such as '/mnt/3fs/models/*.data', quoted. Default: all of the daemon's files."`
	Pinned bool     `env:"-" help:"Only files that a pin keeps."`
	Broken bool     `env:"-" help:"Only files that their writers have not completed, as far as names and sizes tell. It looks at every file."`
	Sort   string   `env:"-" default:"none" enum:"none,bytes,unused,uses" help:"bytes, unused, uses: the --limit files with the most of it. none: as they are found, directory by directory."`
	Limit  int      `env:"-" placeholder:"N" range:"1..1000000000" help:"How many files at most; at most 10000 that are sorted. Default: 100 if they are sorted, all if not."`
}

// lsReport is what the command prints as JSON.
type lsReport struct {
	Files []keeper.Listed `json:"files"`
}

// query returns what the flags ask for.
func (c *lsCmd) query(patterns []string) (keeper.Query, error) {
	q := keeper.Query{Selection: c.selection(patterns), Pinned: c.Pinned, Broken: c.Broken, Most: c.Limit}
	if err := c.check(); err != nil {
		return q, err
	}
	if c.Sort != "none" {
		q.Sort = c.Sort
		if q.Most = cmp.Or(c.Limit, 100); q.Most > keeper.MostSorted {
			return q, bad("limit", "%d is too much for files that are sorted: give at most %d, or --sort none", c.Limit, keeper.MostSorted)
		}
	}
	return q, nil
}

// Run lists them.
func (c *lsCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "ls"
	if _, err := c.query(nil); err != nil {
		return err
	}
	client, at, err := c.connect(ctx, c.Paths...)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	q, err := c.query(at)
	if err != nil {
		return err
	}
	if c.JSON {
		return streamed(ctx, out, command, "files", func(add func(any) error) (any, error) {
			return nil, client.List(ctx, q, func(e keeper.Listed) error { return add(e) })
		})
	}
	buffered, flush := lineWriter(out)
	defer flush()
	began := false
	err = client.List(ctx, q, func(e keeper.Listed) error {
		if !began {
			began = true
			if err := c.row(buffered, "bytes", "unused", "uses", "owner", "notes", "path"); err != nil {
				return err
			}
		}
		return c.row(buffered, bytesText(e.Bytes), unusedText(e.UnusedSeconds), strconv.Itoa(e.Uses), e.Owner, notesOf(e), printable(e.Path))
	})
	if err == nil && !began {
		_, err = fmt.Fprintln(out, "No files.")
	}
	return err
}

// row prints a line of the table. Widths are fixed: the table may be too long for memory.
func (c *lsCmd) row(out io.Writer, bytes, unused, uses, owner, notes, path string) error {
	if c.Broken {
		_, err := fmt.Fprintf(out, "%9s %7s  %-14s  %s  (%s)\n", bytes, unused, owner, path, notes)
		return err
	}
	_, err := fmt.Fprintf(out, "%9s %7s %5s  %-14s  %-7s  %s\n", bytes, unused, uses, owner, notes, path)
	return err
}

// notesOf says what else there is to say of a file.
func notesOf(e keeper.Listed) string {
	var all []string
	for _, n := range []struct {
		is   bool
		text string
	}{{e.Trouble != "", troubleOf(e)}, {e.Pinned, "pinned"}, {e.InUse, "open"}, {e.Temporary && e.Trouble == "", "temporary"}} {
		if n.is {
			all = append(all, n.text)
		}
	}
	return cmp.Or(strings.Join(all, ","), "-")
}

// troubleOf says what is wrong with a file that its writer did not complete.
func troubleOf(e keeper.Listed) string {
	if e.Young {
		return e.Trouble + "; its writer may still be at work"
	}
	return e.Trouble
}

// unusedText is an age for people.
func unusedText(seconds int64) string {
	switch d := time.Duration(seconds) * time.Second; {
	case d < time.Minute:
		return fmt.Sprintf("%ds", seconds)
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1fh", d.Hours())
	default:
		return fmt.Sprintf("%.1fd", d.Hours()/24)
	}
}

// givenDuration is a duration that may also be given in days: 7d.
type givenDuration time.Duration

// UnmarshalText parses it.
func (d *givenDuration) UnmarshalText(text []byte) error {
	s, unit := string(text), time.Duration(1)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		s, unit = days+"h", 24
	}
	parsed, err := time.ParseDuration(s)
	const most = 100 * 365 * 24 * time.Hour
	if err != nil || parsed < time.Second/unit || parsed > most/unit {
		return fmt.Errorf("%q is no duration from 1s to 100 years: write 90m, 12h or 7d", text)
	}
	*d = givenDuration(parsed * unit)
	return nil
}
