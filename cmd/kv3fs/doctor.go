package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

type doctorCmd struct {
	Mount string `placeholder:"DIR" help:"The mount to examine. Default: the one that --engine-config names, or the only one."`
	Data  string `placeholder:"DIR" help:"The daemon's data directory. Default: as the daemon reports it."`

	Engine       string `placeholder:"NAME" help:"Also check what this engine needs: ${engines}."`
	EngineConfig string `placeholder:"FILE" help:"Also check this file, the engine's own configuration. Requires --engine. Default for LMCache: what LMCACHE_CONFIG_FILE names, or the variables LMCACHE_* of this environment."`
	Model        string `placeholder:"NAME" help:"Model, as named on Hugging Face. Without --engine-config, it determines how much memory the engine needs."`
	BlockTokens  int    `placeholder:"N" range:"1..1048576" help:"Tokens per chunk, page or block; they determine the memory too. Default: the engine's."`
	TP           int    `name:"tp" placeholder:"N" range:"1..4096" help:"Tensor-parallel ranks on this host. Default: as the engine's configuration says, or 1."`
	ExtraPools   int    `placeholder:"N" range:"1..64" help:"SGLang with a hybrid model: its pools besides the KV cache (mamba, swa, indexer, draft). Each has a file and clients of its own. SGLang logs them as \"Registered hybrid pool\"."`

	GPUMemoryUtilization float64 `name:"gpu-memory-utilization" placeholder:"SHARE" range:"0.01..1" help:"LMCache with GDS: vLLM's flag of that name, to compare the GPUs' memory with. Default: as --engine-config says, or vLLM's 0.92."`

	PagesStore pagesStore `placeholder:"STORE" help:"Also examine the etcd in which many hosts have their page index, as --pages-store of serve names it: its members, known faults of their versions, and its room. Nothing is written to it."`
	Etcd       etcdFlags  `embed:"" prefix:"pages-"`

	Fix         bool `help:"Remove what dead daemons and clients left in /dev/shm. Nothing else is changed."`
	NoBandwidth bool `help:"Do not measure the disk. The measurement takes two seconds and meanwhile occupies 1 GiB, or a tenth of the free space if that is less."`
	JSON        bool `name:"json" help:"Print the report as JSON instead of a table."`
}

// Help is what "kv3fs doctor --help" adds to the flags.
func (*doctorCmd) Help() string {
	return `For example:

  kv3fs doctor                                           # this host and the daemon on it
  kv3fs doctor --engine vllm --tp 8                      # also what vLLM needs
  kv3fs doctor --engine lmcache --engine-config lmc.yaml # also the engine's own file
  kv3fs doctor --pages-store etcd://e1:2379,e2:2379/kv3fs # also the etcd that hosts share

Run it where the engine runs, in its container and as its user: the doctor sees the
limits, rights and /dev/shm of its own process. It changes nothing without --fix.

Exit status: 0 if all is well, 1 if there are warnings, 2 if there are failures or the
command line is wrong, 130 if interrupted.`
}

// Validate reports invalid flags.
func (c *doctorCmd) Validate() error {
	if c.Etcd != (etcdFlags{}) && (c.PagesStore == "" || c.PagesStore == httpserver.Embedded) {
		return fmt.Errorf("--pages-store-ca, --pages-store-cert, --pages-store-key, --pages-store-user and --pages-store-password-file need --pages-store etcd://HOST:PORT,.../PREFIX")
	}
	if c.Engine == "" {
		if c.GPUMemoryUtilization != 0 || c.EngineConfig != "" || c.Model != "" || c.BlockTokens != 0 || c.TP != 0 || c.ExtraPools != 0 {
			return fmt.Errorf("--engine-config, --model, --block-tokens, --tp, --extra-pools and --gpu-memory-utilization need --engine, one of %s", strings.Join(engineconfig.Names(), ", "))
		}
		return nil
	}
	if c.ExtraPools != 0 && c.Engine != engineconfig.SGLang {
		return fmt.Errorf("--extra-pools is for --engine %s", engineconfig.SGLang)
	}
	p, err := c.params()
	if err == nil {
		_, err = engineconfig.NeedOf(c.Engine, p)
	}
	return err
}

func (c *doctorCmd) params() (p engineconfig.Params, err error) {
	p = engineconfig.Params{TP: c.TP, BlockTokens: c.BlockTokens, ExtraPools: c.ExtraPools}
	if c.Model != "" {
		p.Model, err = model.Lookup(c.Model)
	}
	return p, err
}

// etcd returns the one to be examined; nil: none.
func (c *doctorCmd) etcd() (*cluster.Config, error) {
	if c.PagesStore == "" || c.PagesStore == httpserver.Embedded {
		return nil, nil
	}
	config, err := cluster.ParseStore(string(c.PagesStore))
	if err != nil {
		return nil, bad("pages-store", "%v", err)
	}
	return &config, c.Etcd.trustEtcd("pages-", &config)
}

// Run examines the host.
func (c *doctorCmd) Run(ctx context.Context, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	params, err := c.params()
	if err != nil {
		return err
	}
	etcd, err := c.etcd()
	if err != nil {
		return err
	}
	report := doctor.Run(ctx, doctor.Options{
		Mount: c.Mount, Data: c.Data,
		Engine: c.Engine, ConfigFile: c.EngineConfig, Params: params, GPUMemoryUtilization: c.GPUMemoryUtilization,
		Etcd: etcd, Fix: c.Fix, NoBandwidth: c.NoBandwidth,
		Host: host.Local(), Probe: []string{self, "probe"},
	})
	if c.JSON {
		err = writeJSON(out, "doctor", ctx.Err() != nil, report)
	} else {
		err = report.WriteTable(out, columns(), term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == "")
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

// columns returns the width of the terminal, within readable limits.
func columns() int {
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		return min(max(width, 60), 160)
	}
	return 110
}

// probeCmd is the command that the doctor runs as a separate process for anything that
// may hang: such a process can be left behind.
type probeCmd struct {
	Args []string `arg:"" passthrough:""`
}

// Run executes one probe.
func (c *probeCmd) Run(out io.Writer) error { return doctor.Probe(c.Args, out) }
