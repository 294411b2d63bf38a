package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// quotaCmd limits what directories take.
type quotaCmd struct {
	Set quotaSetCmd    `cmd:"" help:"Limit what a directory and all below it take."`
	LS  quotaListCmd   `cmd:"" name:"ls" help:"List all quotas, and what the directories take."`
	RM  quotaRemoveCmd `cmd:"" name:"rm" help:"End the quota of a directory. Its files stay."`
}

// quotasReport is what the commands print as JSON: the quotas that there are, or the one that was
// set or ended.
type quotasReport struct {
	Quotas []keeper.Quota `json:"quotas"`
}

type quotaSetCmd struct {
	operateFlags
	Dir  string    `arg:"" help:"The directory, below the mount or the data directory. It keeps its quota when it is renamed."`
	Size quotaSize `arg:"" help:"Such as 500GiB; at least 1MiB."`
}

// Run sets the quota.
func (c *quotaSetCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "quota set"
	client, at, err := c.connect(ctx, c.Dir)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	if err := client.SetQuota(ctx, at[0], int64(c.Size)); err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	all, err := client.Quotas(ctx)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	set := []keeper.Quota{}
	for _, q := range all {
		if q.Path == at[0] {
			set = append(set, q)
		}
	}
	if c.JSON {
		return writeJSON(out, command, false, quotasReport{set})
	}
	for _, q := range set {
		fmt.Fprintf(out, "%s may take %s; it takes %s.\n", printable(q.Path), bytesText(q.Bytes), bytesText(q.UsedBytes))
		if q.UsedBytes > q.Bytes {
			fmt.Fprintln(out, "Files go now until the quota is kept to. Writes there wait for that, and fail with EDQUOT if what is left is pinned, in use or may not go.")
		}
	}
	return nil
}

type quotaListCmd struct{ operateFlags }

// Run lists the quotas.
func (c *quotaListCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "quota ls"
	client, _, err := c.connect(ctx)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	all, err := client.Quotas(ctx)
	switch {
	case err != nil:
		return c.failed(ctx, out, command, nil, err)
	case c.JSON:
		return writeJSON(out, command, false, quotasReport{all})
	case len(all) == 0:
		_, err := fmt.Fprintln(out, "There are no quotas.")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "quota\tused\tpart\tfiles\t  directory")
	for _, q := range all {
		there := ""
		if q.Missing {
			there = "  (it is not there now)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s%s\n", bytesText(q.Bytes), bytesText(q.UsedBytes), percentOf(q.UsedBytes, q.Bytes), humanize.Comma(q.Files), printable(q.Path), there)
	}
	return t.Flush()
}

type quotaRemoveCmd struct {
	operateFlags
	Dir string `arg:"" help:"The directory, as ls shows it with --data, or by its path."`
}

// Run ends the quota.
func (c *quotaRemoveCmd) Run(ctx context.Context, out io.Writer) error {
	const command = "quota rm"
	client, at, err := c.connect(ctx, c.Dir)
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	all, err := client.Quotas(ctx)
	if err == nil {
		err = client.RemoveQuota(ctx, at[0])
	}
	if err != nil {
		return c.failed(ctx, out, command, nil, err)
	}
	ended := quotasReport{Quotas: []keeper.Quota{}}
	for _, q := range all {
		if q.Path == at[0] {
			ended.Quotas = append(ended.Quotas, q)
		}
	}
	if c.JSON {
		return writeJSON(out, command, false, ended)
	}
	_, err = fmt.Fprintf(out, "%s has no quota any more.\n", printable(at[0]))
	return err
}

// quotaSize is the size of a quota.
type quotaSize int64

// UnmarshalText parses it as --capacity is, but for a part of the file system.
func (s *quotaSize) UnmarshalText(text []byte) error {
	limit, err := keeper.ParseLimit(string(text))
	switch {
	case err != nil:
		return err
	case limit.Bytes == 0:
		return fmt.Errorf("%q: a quota is a size, such as 500GiB", text)
	}
	*s = quotaSize(limit.Bytes)
	return nil
}

// bytesText is a size for people.
func bytesText(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }

func percentOf(part, whole int64) string {
	if whole <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}
