package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/kv3fs/kv3fs/internal/doctor"
	"github.com/kv3fs/kv3fs/internal/engines"
	"github.com/kv3fs/kv3fs/internal/host"
)

type doctorCmd struct {
	Mount string `placeholder:"DIR" help:"The mount to look at. Default: the one that --engine-config names, or the only one there is."`
	Data  string `placeholder:"DIR" help:"The daemon's data directory. Default: what the daemon says."`

	Engine       string `placeholder:"NAME" help:"Look for what this engine needs, too: ${engines}."`
	EngineConfig string `placeholder:"FILE" help:"The engine's own configuration, to be checked; wants --engine."`
	TP           int    `name:"tp" placeholder:"N" help:"Tensor-parallel ranks on this host. Default: as the engine's configuration says, or 1."`

	Fix         bool `help:"Remove what dead daemons and clients have left in /dev/shm. Nothing else is changed."`
	NoBandwidth bool `help:"Do not measure the disk, which takes two seconds and for that long at most 1 GiB and a tenth of the free space."`
	JSON        bool `name:"json" help:"Print the report as JSON instead of a table."`
}

// Help is what "kv3fs doctor --help" adds to the flags.
func (*doctorCmd) Help() string {
	return `For example:

  kv3fs doctor                                           # this host and the daemon on it
  kv3fs doctor --engine vllm --tp 8                      # and what vLLM needs
  kv3fs doctor --engine lmcache --engine-config lmc.yaml # and whether its file is right

Run it where the engine runs, in its container and as its user: limits, rights and
/dev/shm are those of whoever looks. Nothing is changed but what --fix says.

Exit status: 0, fine; 1, there are warnings; 2, it will not work.`
}

// Validate refuses engines that are unknown.
func (c *doctorCmd) Validate() error {
	switch {
	case c.Engine != "" && !slices.Contains(engines.Names(), c.Engine):
		return fmt.Errorf("--engine: no engine %q (known: %s)", c.Engine, strings.Join(engines.Names(), ", "))
	case c.EngineConfig != "" && c.Engine == "":
		return fmt.Errorf("--engine-config: say with --engine whose it is (%s)", strings.Join(engines.Names(), ", "))
	case c.TP < 0:
		return fmt.Errorf("--tp: %d ranks", c.TP)
	}
	return nil
}

// Run examines the host.
func (c *doctorCmd) Run(ctx context.Context, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	report := doctor.Run(ctx, doctor.Options{
		Mount: c.Mount, Data: c.Data,
		Engine: c.Engine, ConfigFile: c.EngineConfig, Params: engines.Params{TP: c.TP},
		Fix: c.Fix, NoBandwidth: c.NoBandwidth,
		Host: host.Local(), Probe: []string{self, "probe"},
	})
	if c.JSON {
		err = writeJSON(out, report)
	} else {
		err = report.WriteTable(out, term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "")
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case report.ExitStatus() != 0:
		return exitStatus(report.ExitStatus())
	}
	return nil
}

// probeCmd is the doctor's other half: it does what may hang, in a process that
// can be left behind.
type probeCmd struct {
	Args []string `arg:"" passthrough:""`
}

// Run answers one question of the doctor.
func (c *probeCmd) Run(out io.Writer) error { return doctor.Probe(c.Args, out) }
