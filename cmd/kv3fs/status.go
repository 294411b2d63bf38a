package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/admin/top"
)

// Exit statuses of status, besides 0 for healthy.
const (
	exitWarnings    = 3
	exitUnhealthy   = 4
	exitNothingRuns = 5
)

// statusCmd says how the daemons of this host are.
type statusCmd struct {
	Path    givenPath     `arg:"" optional:"" name:"mount" help:"Only the daemon of this mount or data directory. Default: all of this host."`
	Timeout time.Duration `default:"10s" range:"1s..1h" help:"How long to wait for each daemon."`
	JSON    bool          `name:"json" help:"Print JSON instead of text."`
}

// Help is what "kv3fs status --help" adds to the flags.
func (*statusCmd) Help() string {
	return `Run it as root or as the daemon's user.

Exit status: 0 if all are healthy, 3 if the doctor has found something, 4 if a daemon is not ready or does
not answer, 5 if none runs, 1 if that cannot be found out, 2 if the command line is wrong, 130 if interrupted.
Mounts of users other than root and yourself that do not answer are named, and do not count unless you ask for one.`
}

// statusReport is what the command prints as JSON.
type statusReport struct {
	Health  string         `json:"health"` // the worst of the daemons'; or: nothing runs
	Daemons []daemonStatus `json:"daemons"`
	Others  []otherMount   `json:"others,omitempty"`
}

// otherMount is a mount of another user that does not answer. It does not count: whoever runs it can have it hang.
type otherMount struct {
	Mount string `json:"mount"`
	Error string `json:"error"`
}

// daemonStatus is what a daemon says, or why it says nothing.
type daemonStatus struct {
	Mount  string             `json:"mount"`
	Data   string             `json:"data"`
	Health api.Health         `json:"health"`
	Error  string             `json:"error,omitempty"`
	Status *shown[api.Status] `json:"status,omitempty"`
}

// shown is a document of the API, and writes itself as that does.
type shown[T any] struct{ is T }

// MarshalJSON writes it.
func (s shown[T]) MarshalJSON() ([]byte, error) { return api.Encode(s.is) }

// Run prints it.
func (c *statusCmd) Run(ctx context.Context, out io.Writer) error {
	daemons, strange, err := runningDaemons(ctx, string(c.Path))
	report := statusReport{Health: "nothing runs", Daemons: []daemonStatus{}}
	for _, d := range strange {
		report.Others = append(report.Others, otherMount{d.mount, d.err.Error()})
	}
	if err == nil {
		for _, d := range daemons {
			one, failed := c.ask(ctx, d)
			if errors.Is(failed, errNothingRuns) {
				err = failed
				continue
			}
			report.Daemons = append(report.Daemons, one)
		}
	}
	if ctx.Err() != nil {
		if c.JSON {
			err = writeJSON(out, "status", true, report)
		}
		return cmp.Or(err, ctx.Err())
	}
	if err != nil && !errors.Is(err, errNothingRuns) {
		return err
	}
	report.judge()
	if c.JSON {
		if err := writeJSON(out, "status", false, report); err != nil {
			return err
		}
	} else if len(report.Daemons) == 0 {
		if _, err := fmt.Fprintf(out, "%v\n", err); err != nil {
			return err
		}
	}
	for i := range report.Daemons {
		if c.JSON {
			break
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := report.Daemons[i].write(out); err != nil {
			return err
		}
	}
	if !c.JSON {
		for _, o := range report.Others {
			fmt.Fprintf(out, "note: %s, another user's mount, does not answer and does not count: %s\n", top.Visible(o.Mount), top.Visible(o.Error))
		}
	}
	switch report.Health {
	case string(api.Healthy):
		return nil
	case string(api.Warnings):
		return exitStatus(exitWarnings)
	case string(api.Unhealthy):
		return exitStatus(exitUnhealthy)
	}
	return exitStatus(exitNothingRuns)
}

// judge says how the worst daemon is.
func (r *statusReport) judge() {
	order := []api.Health{api.Healthy, api.Warnings, api.Unhealthy}
	worst := -1
	for _, d := range r.Daemons {
		worst = max(worst, slices.Index(order, d.Health))
	}
	if worst >= 0 {
		r.Health = string(order[worst])
	}
}

// ask asks a daemon. Its doctor may look for the first time, which takes some seconds.
func (c *statusCmd) ask(ctx context.Context, d runningDaemon) (daemonStatus, error) {
	one := daemonStatus{Mount: d.mount, Data: d.data, Health: api.Unhealthy}
	client, err := d.dial(ctx, c.Timeout)
	if err == nil {
		defer client.Close()
		var found api.Findings
		var is api.Status
		if err = client.Show(ctx, "findings?wait=5", &found); err == nil {
			err = client.Show(ctx, "status", &is)
		}
		if err == nil {
			one.Mount, one.Data, one.Health, one.Status = is.Mount, is.Data, is.Health, &shown[api.Status]{is}
			return one, nil
		}
	}
	one.Error = err.Error()
	return one, err
}

func (d *daemonStatus) write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if d.Status == nil {
		fmt.Fprintf(t, "%s\t%s\n", top.Visible(cmp.Or(d.Mount, d.Data)), d.Health)
		fmt.Fprintf(t, "why\t%s\n", top.Visible(d.Error))
		return t.Flush()
	}
	for _, line := range statusLines(&d.Status.is) {
		fmt.Fprintf(t, "%s\t%s\n", line.name, top.Visible(line.text))
	}
	return t.Flush()
}

// statusLine is a line of what a daemon says of itself.
type statusLine struct{ name, text string }

// statusLines returns them in the order in which they are read. Texts are as they came, not fit for a terminal.
func statusLines(s *api.Status) (all []statusLine) {
	add := func(name, format string, args ...any) {
		all = append(all, statusLine{name, fmt.Sprintf(format, args...)})
	}
	add("kv3fs "+top.Visible(s.Version), "%s", s.Health)
	about := ""
	if s.Readonly {
		about += ", read-only"
	}
	if s.Shared {
		about += ", shared with other hosts"
	}
	add("serves", "%s at %s%s", s.Data, s.Mount, about)
	add("since", "%s (%s), pid %d on %s", s.Started.Local().Format(time.DateTime), unusedText(int64(s.UptimeSeconds)), s.PID, s.Host)
	var ready []string
	for _, c := range s.Checks {
		if c.Ready {
			ready = append(ready, c.Name)
			continue
		}
		add("NOT READY", "%s: %s", c.Name, c.Error)
	}
	add("ready", "%s", strings.Join(ready, ", "))
	where := slices.Clone(s.Addresses.Pages)
	if s.Addresses.Admin != "" {
		where = append([]string{s.Addresses.Admin + " (dashboard, metrics)"}, where...)
	}
	add("addresses", "%s", strings.Join(where, ", "))
	switch {
	case s.Keeper == nil:
		add("capacity", "none is kept here")
	case s.Keeper.LimitBytes == 0:
		add("used", "%s in %s files; no capacity", bytesText(s.Keeper.UsedBytes), humanize.Comma(s.Keeper.Files))
	default:
		add("capacity", "%s of %s used (%s), %s files", bytesText(s.Keeper.UsedBytes), bytesText(s.Keeper.LimitBytes), percentOf(s.Keeper.UsedBytes, s.Keeper.LimitBytes), humanize.Comma(s.Keeper.Files))
	}
	if s.Space == nil {
		add("disk", "does not answer")
	} else {
		add("disk", "%s of %s free", bytesText(s.Space.FreeBytes), bytesText(s.Space.SizeBytes))
	}
	add("limits", "%s iovs and rings, %s users with rings, %s of shared memory", humanize.Comma(int64(s.Limits.Registrations)), humanize.Comma(int64(s.Limits.RingUsers)), bytesText(s.Limits.MappedBytes))
	add("clients", "%d processes with %d rings and %d iovs of %s", s.Clients.Processes, s.Clients.Rings, s.Clients.Iovs, bytesText(s.Clients.IovBytes))
	add("rings read", "%s in %s requests", bytesText(s.Rings.ReadBytes), humanize.Comma(s.Rings.Reads))
	add("rings wrote", "%s in %s requests; %s failed of all", bytesText(s.Rings.WriteBytes), humanize.Comma(s.Rings.Writes), humanize.Comma(s.Rings.Failed))
	if s.Findings == nil {
		add("doctor", "has not looked yet")
		return all
	}
	add("doctor", "%d failures, %d warnings, %s ago", s.Findings.Failures, s.Findings.Warnings, unusedText(int64(s.Now.Sub(s.Findings.Checked).Seconds())))
	if s.Findings.Error != "" {
		add("", "could not look again: %s", s.Findings.Error)
	}
	for _, f := range s.Findings.Top {
		add("  "+f.Status, "%s: %s", f.ID, f.Found)
		if f.Fix != "" {
			add("", "fix: %s", f.Fix)
		}
	}
	return all
}
