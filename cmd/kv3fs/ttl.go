package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// ttlCmd has files go that nobody uses.
type ttlCmd struct {
	Set ttlSetCmd    `cmd:"" help:"Have files go that were not used for so long, whatever room there is."`
	LS  ttlListCmd   `cmd:"" name:"ls" help:"List all TTLs."`
	RM  ttlRemoveCmd `cmd:"" name:"rm" help:"End a TTL."`
}

// ttlsReport is what the commands print as JSON: all TTLs that there are then.
type ttlsReport struct {
	TTLs []ttlReport `json:"ttls"`
}

type ttlReport struct {
	Pattern       string `json:"pattern"`
	UnusedSeconds int64  `json:"unused_seconds"`
}

type ttlSetCmd struct {
	operateFlags
	Pattern  string        `arg:"" help:"A directory (all that is and will be below), a file, or a pattern such as '/mnt/3fs/scratch/*', quoted."`
	Duration givenDuration `arg:"" range:"1s..36500d" help:"Such as 12h or 7d; at least 1s."`
}

// Run sets the TTL.
func (c *ttlSetCmd) Run(ctx context.Context, out io.Writer) error {
	return c.ttls(ctx, out, "ttl set", time.Duration(c.Duration), c.Pattern)
}

type ttlListCmd struct{ operateFlags }

// Run lists TTLs.
func (c *ttlListCmd) Run(ctx context.Context, out io.Writer) error {
	return c.ttls(ctx, out, "ttl ls", 0)
}

type ttlRemoveCmd struct {
	operateFlags
	Pattern string `arg:"" help:"The pattern, as it was given to set, or as ls shows it with --data or --mount."`
}

// Run ends the TTL.
func (c *ttlRemoveCmd) Run(ctx context.Context, out io.Writer) error {
	return c.ttls(ctx, out, "ttl rm", 0, c.Pattern)
}

// ttls sets or ends the TTL of a pattern, if there is one, and prints all.
func (f *operateFlags) ttls(ctx context.Context, out io.Writer, command string, unused time.Duration, pattern ...string) error {
	client, at, err := f.connect(ctx, pattern...)
	if err != nil {
		return f.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	if len(at) > 0 {
		err = client.SetTTL(ctx, at[0], unused)
	}
	var all []keeper.TTL
	if err == nil {
		all, err = client.TTLs(ctx)
	}
	if err != nil {
		return f.failed(ctx, out, command, nil, err)
	}
	report := ttlsReport{TTLs: []ttlReport{}}
	for _, t := range all {
		report.TTLs = append(report.TTLs, ttlReport{t.Pattern, int64(t.Unused / time.Second)})
	}
	switch {
	case f.JSON:
		return writeJSON(out, command, false, report)
	case len(all) == 0:
		_, err := fmt.Fprintln(out, "There are no TTLs.")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "unused for\t  pattern")
	for _, one := range report.TTLs {
		fmt.Fprintf(t, "%s\t  %s\n", unusedText(one.UnusedSeconds), printable(one.Pattern))
	}
	return t.Flush()
}
