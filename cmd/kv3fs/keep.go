package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

type keepCmd struct {
	Dir givenPath `arg:"" help:"The directory: the cache directory of a 3FS, NFS or Lustre mount, or what LMCache's GDS backend writes to."`

	Capacity      capacity `required:"" placeholder:"SIZE" help:"How much its files may take, e.g. 10TiB, or 90% of its file system."`
	HighWatermark float64  `default:"95" range:"1..100" placeholder:"PERCENT" help:"The part of the capacity, in percent, above which files are removed."`
	LowWatermark  float64  `default:"90" range:"1..100" placeholder:"PERCENT" help:"The part of the capacity, in percent, down to which they are removed then."`

	Grace time.Duration `default:"10m" range:"1s..24h" help:"How long after its last change a file is left alone. Who uses a file on another host cannot be seen, and clocks and caches of hosts differ: make it longer than a request, from lookup to load, can take."`

	DryRun bool `xor:"mode" help:"Change nothing: list what would go, in order, and what would stay, and why."`
	Once   bool `xor:"mode" help:"Make one pass and exit, for cron. Status 4: more than the capacity is used, and nothing more may go. Status 5: another keeper is at work on the directory."`
	JSON   bool `name:"json" help:"With --dry-run or --once: print the files and the totals as JSON."`

	Identity    identityName  `placeholder:"NAME" help:"How this host is called in the logs of others. Default: by the machine."`
	Lease       time.Duration `default:"30s" range:"3s..1h" help:"After how long without a sign of life from the keeper at work another host's takes over."`
	ScanEvery   time.Duration `default:"1m" range:"1s..24h" help:"How often to look for new and growing files. This looks at each directory, and at what is new in those that have changed."`
	RescanEvery time.Duration `default:"1h" range:"1s..720h" help:"In what time to look at every file, at some of them in each scan, for its last use and for what else has changed."`
	ScanRate    int           `default:"5000" range:"0..10000000" placeholder:"N" help:"How many files and directories to look at in a second, so that a metadata server does not suffer. 0: as fast as possible."`
	MustBeMount bool          `help:"Refuse to start if the directory is not itself a mount point."`

	Log logFlags `embed:"" prefix:"log-"`
}

// Exit statuses of keep --once.
const (
	exitOver    = 4 // more is used than the capacity, and nothing more may go
	exitStandby = 5 // another keeper has the lease
)

// Help is what "kv3fs keep --help" adds to the flags.
func (*keepCmd) Help() string {
	return `For example:

  kv3fs keep /mnt/3fs/cache --capacity 10TiB --dry-run
  kv3fs keep /mnt/3fs/cache --capacity 10TiB

The first one lists what would go. The second one keeps the directory within its size until it
is stopped. Run it on several hosts that have the directory mounted: one of them is at work,
and when it ends or hangs, another one takes over. What it removes is what engines take
for a miss: docs/keep.md.`
}

// Validate reports flags that do not fit.
func (c *keepCmd) Validate() error {
	switch {
	case c.LowWatermark >= c.HighWatermark:
		return bad("low-watermark", "%v%% must be below --high-watermark, which is %v%%", c.LowWatermark, c.HighWatermark)
	case c.JSON && !c.DryRun && !c.Once:
		return bad("json", "the service prints no report: add --dry-run or --once")
	}
	return nil
}

// Run keeps the directory until ctx ends, or makes one pass.
func (c *keepCmd) Run(ctx serverContext, out io.Writer, tell *teller) error {
	least := everything
	if c.DryRun { // what it logs otherwise is that files were removed
		least = slog.LevelWarn
	}
	lines := c.Log.open(tell, least)
	config := daemon.KeepConfig{
		Dir: string(c.Dir), MustBeMount: c.MustBeMount, Identity: string(c.Identity),
		Keeping: daemon.Keeping{Capacity: c.Capacity.Limit, HighPercent: c.HighWatermark, LowPercent: c.LowWatermark, Grace: c.Grace},
		Lease:   c.Lease, RefreshEvery: c.ScanEvery, RescanEvery: c.RescanEvery, LooksPerSecond: c.ScanRate,
		Log: lines.Logger(), Audit: lines.Audit(),
	}
	if c.DryRun || c.Once {
		return c.pass(ctx, config, out)
	}
	tuneCollector()
	signal.Ignore(syscall.SIGPIPE) // the program that reads the log may exit
	return daemon.Keep(ctx, config, func(dir string, keeps bool) {
		role := "keeping"
		if !keeps {
			role = "standing by to keep"
		}
		lines.Always().Info(role, "directory", dir, "capacity", c.Capacity.String(), "pid", os.Getpid())
	})
}

// pass makes one pass, or says what it would do.
func (c *keepCmd) pass(ctx context.Context, config daemon.KeepConfig, out io.Writer) error {
	w := bufio.NewWriter(out)
	var list keepList
	if c.JSON {
		list = newKeepJSON(w, c.DryRun)
	} else {
		list = newKeepTable(w, c.DryRun)
	}
	var p daemon.KeepPass
	var err error
	went := func(e keeper.Entry) { list.file(e, true) }
	if c.DryRun {
		p, err = daemon.KeepPretend(ctx, config, went, func(e keeper.Entry) { list.file(e, false) })
	} else {
		p, err = daemon.KeepOnce(ctx, config, went)
	}
	interrupted := ctx.Err() != nil
	if err == nil || interrupted {
		err = errors.Join(err, list.end(p, interrupted), w.Flush())
	}
	switch {
	case interrupted:
		return context.Canceled
	case err != nil:
		return err
	case !p.Held:
		config.Log.Warn("nothing was done: another keeper keeps the directory already", "directory", p.Dir, "holder", p.Holder)
		return exitStatus(exitStandby)
	case p.Bytes > p.LimitBytes && c.Once:
		config.Log.Warn("the directory takes more than its limit, and nothing more may go", "directory", p.Dir, "bytes", p.Bytes, "limit_bytes", p.LimitBytes, "cure", "raise --capacity, or see --dry-run for why files stay")
		return exitStatus(exitOver)
	}
	return nil
}

// keepList prints what a pass does as it does it: there may be millions of files.
type keepList interface {
	file(e keeper.Entry, goes bool)
	end(p daemon.KeepPass, interrupted bool) error // also the first one of writing
}

// keepTable prints for people. The buffer keeps errors of writing until it is flushed.
type keepTable struct {
	out   *bufio.Writer
	dry   bool
	gone  int64
	bytes int64
}

const keepRow = "%-6s %-15s %10s %9s %-15s %s\n"

func newKeepTable(out *bufio.Writer, dry bool) *keepTable {
	if dry {
		fmt.Fprintf(out, keepRow, "", "WHY", "SIZE", "UNUSED", "LAYOUT", "FILE")
	}
	return &keepTable{out: out, dry: dry}
}

func (t *keepTable) file(e keeper.Entry, goes bool) {
	what := "stays"
	if goes {
		what = "goes"
		t.gone++
		t.bytes += e.Bytes
	}
	if t.dry {
		fmt.Fprintf(t.out, keepRow, what, e.Why, humanize.IBytes(uint64(e.Bytes)), shortAge(e.Unused), e.Owner, printable(e.Path))
	}
}

func (t *keepTable) end(p daemon.KeepPass, interrupted bool) error {
	did := "removed"
	if t.dry {
		did = "would remove"
	}
	if !p.Held || interrupted {
		return nil
	}
	fmt.Fprintf(t.out, "%s %d files of %s; %s of %s used, %s left in %d files", did, t.gone, humanize.IBytes(uint64(t.bytes)),
		humanize.IBytes(uint64(p.BytesWere)), humanize.IBytes(uint64(p.LimitBytes)), humanize.IBytes(uint64(p.Bytes)), p.Files)
	if p.Unreadable > 0 {
		fmt.Fprintf(t.out, "; %d entries could not be read", p.Unreadable)
	}
	fmt.Fprintln(t.out)
	return nil
}

// shortAge returns a time in two units at most.
func shortAge(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
