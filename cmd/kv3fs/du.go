package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// duCmd says what directories, owners and models take.
type duCmd struct {
	operateFlags
	Path  string `arg:"" optional:"" help:"The directory. Default: all of the daemon's."`
	Depth int    `env:"-" default:"1" range:"0..1000" help:"How many levels of directories below it are listed."`
	By    string `env:"-" default:"directory" enum:"directory,owner,model" help:"directory: what directories take. owner, model: what the files of each program, or of each model, take where the names tell."`
}

// duReport is what the command prints as JSON.
type duReport struct {
	Path        string         `json:"path"`
	Bytes       int64          `json:"bytes"`
	Files       int64          `json:"files"`
	Complete    bool           `json:"complete"`
	Directories []keeper.Usage `json:"directories,omitempty"`
	Groups      []keeper.Group `json:"groups,omitempty"`
}

// Run prints it.
func (c *duCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "du"
	client, at, err := c.connectTo(ctx, c.Path)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	report := duReport{Path: at}
	state, err := client.State(ctx)
	if err == nil {
		report.Complete = state.Scanned
		depth := c.Depth
		if c.By != "directory" {
			depth = 0
		}
		err = client.Usage(ctx, report.Path, depth, func(u keeper.Usage) error {
			if report.Directories = append(report.Directories, u); len(report.Directories) == 1 {
				report.Bytes, report.Files = u.Bytes, u.Files
			}
			return nil
		})
	}
	if err == nil && c.By != "directory" {
		report.Directories = nil
		if report.Groups, err = client.Groups(ctx, report.Path); err == nil {
			report.Groups = folded(report.Groups, c.By)
		}
	}
	switch {
	case err != nil:
		return c.failed(ctx, out, command, report, err)
	case c.JSON:
		return writeJSON(out, command, false, report)
	}
	return report.write(out, c.By)
}

func (r *duReport) write(out io.Writer, by string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if by == "directory" {
		fmt.Fprintln(t, "bytes\tfiles\tquota\t  directory")
		for _, u := range r.Directories {
			limit := ""
			if u.LimitBytes > 0 {
				limit = bytesText(u.LimitBytes)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t  %s\n", bytesText(u.Bytes), humanize.Comma(u.Files), limit, printable(u.Path))
		}
	} else {
		fmt.Fprintf(t, "bytes\tfiles\tpart\t  %s\n", by)
		left := r.Bytes
		for _, g := range r.Groups {
			left -= g.Bytes
			name := g.Owner
			if by == "model" {
				name = printable(g.Model)
				if g.Model == "" {
					name = "(the names do not tell)"
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t  %s\n", bytesText(g.Bytes), humanize.Comma(g.Files), percentOf(g.Bytes, r.Bytes), name)
		}
		if left > 0 {
			fmt.Fprintf(t, "%s\t\t%s\t  (directories, and what was removed and is still open)\n", bytesText(left), percentOf(left, r.Bytes))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !r.Complete {
		_, err := fmt.Fprintln(out, "\nThe daemon has just started and has not seen all files yet.")
		return err
	}
	return nil
}

// folded adds up what groups have in common, the largest first.
func folded(groups []keeper.Group, by string) []keeper.Group {
	all := []keeper.Group{}
	at := map[string]int{}
	for _, g := range groups {
		name := g.Owner
		if by == "model" {
			name = g.Model
			g.Owner = ""
		} else {
			g.Model = ""
		}
		if i, ok := at[name]; ok {
			all[i].Bytes, all[i].Files = all[i].Bytes+g.Bytes, all[i].Files+g.Files
			continue
		}
		at[name] = len(all)
		all = append(all, g)
	}
	slices.SortStableFunc(all, func(a, b keeper.Group) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all
}
