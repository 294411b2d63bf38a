package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Options select what to examine. Only Host and Probe are required.
type Options struct {
	Mount string // "" means the one in the engine's configuration, or the only one
	Data  string // "" means the one that the daemon reports

	Engine     string              // one of engineconfig.Names, or "" for no engine in particular
	ConfigFile string              // the engine's own configuration; "" for none
	Params     engineconfig.Params // describes the deployment if there is no configuration
	// GPUMemoryUtilization is vLLM's share of each GPU's memory; 0: as the configuration says.
	GPUMemoryUtilization float64

	// Etcd is that of a page service that many hosts share; nil: none is examined.
	Etcd *cluster.Config

	Fix         bool // remove leftovers
	NoBandwidth bool // do not measure the disk

	Host  host.Host
	Probe []string // command line that passes the arguments appended to it to Probe
}

// Run examines the host. It returns in bounded time even if disks or mounts hang. If ctx
// ends, it returns early with what was found so far.
func Run(ctx context.Context, o Options) *Report {
	r := &Report{Engine: o.Engine, Findings: []Finding{}}
	e := checkEngine(ctx, &o)
	requested := o.Mount
	if requested == "" {
		requested = e.mount
	}
	optional := o.Engine != "" && !e.need.Rings3FS
	point, daemon, mountFindings := checkMounts(ctx, &o, requested, e.paths(), optional)
	r.Mount = point

	// Checks that ran after ctx ended have no valid result.
	add := func(found ...Finding) {
		if ctx.Err() == nil {
			r.add(found...)
		}
	}
	lookPath := func(name string) (string, error) { return find(ctx, &o, mountTimeout, "command", name) }
	add(checkKernel(o.Host)...)
	add(checkPassthrough(o.Host, daemon, o.Engine)...)
	add(checkFuse(o.Host, lookPath, point != "" || optional)...)
	add(mountFindings...)
	if point != "" {
		dirs := append([]string{point}, e.paths()...)
		ring := checkRing(ctx, &o, point, dirs)
		add(ring)
		if ring.Status == OK {
			add(checkContainer(ctx, &o, dirs))
		}
	}
	add(checkShm(o.Host, e.shmBytes, e.title))
	add(checkShmMemory(o.Host, e.shmBytes, e.title)...)
	if ctx.Err() == nil { // it may remove objects, so its findings must be reported
		r.add(checkLeftovers(o.Host.Path(shm.Dir), o.Host.EUID, time.Now(), o.Fix)...)
	}
	add(checkLimits(ctx, &o, e.need)...)
	add(checkOutlives(o.Host, daemon)...)
	if daemon != nil {
		add(checkDaemonLimits(o.Host, daemon, e.registrations, e.title)...)
	}
	if r.Data = dataDir(&o, daemon); r.Data != "" || point != "" {
		add(checkData(ctx, &o, e, r.Data)...)
	}
	add(e.findings...)
	if e.config != nil {
		add(checkConfig(ctx, &o, e.config, point)...)
	}
	if o.Engine == "" || e.need.PageService != "" {
		add(checkService(ctx, e.need.PageService, o.Engine))
	}
	if o.Etcd != nil {
		add(checkEtcd(ctx, *o.Etcd)...)
	}
	if e.need.HashSeed {
		add(checkHashSeed(ctx, &o))
	}
	add(checkPackages(ctx, &o, e.need.Packages)...)
	if e.need.GDS {
		add(checkGDS(ctx, &o, e)...)
	}
	add(checkGPUMemory(ctx, &o, e)...)
	r.Interrupted = ctx.Err() != nil
	return r
}

// dataDir returns the data directory to examine: the requested one, else the
// daemon's, unless the daemon may be in another container.
func dataDir(o *Options, d *wire.Daemon) string {
	switch {
	case o.Data != "":
		return o.Data
	case d != nil && isDaemon(o.Host, d):
		return d.Data
	}
	return ""
}

// engine holds what is known about the engine that is examined.
type engine struct {
	need          engineconfig.Need
	config        *engineconfig.Config // nil if none could be read
	mount         string               // named by the configuration
	ranks         int
	shmBytes      int64  // of all ranks
	registrations int64  // rings and iovs of all ranks
	held          int64  // bytes that the files to be reserved occupy already
	title         string // for messages: "vllm with 2 ranks"
	findings      []Finding
}

func (e *engine) paths() []string {
	if e.config == nil {
		return nil
	}
	return e.config.BasePaths
}

// missing says which flags would make the sizes exact.
func (o *Options) missing() string {
	var flags []string
	if o.Params.Model == (model.Shape{}) {
		flags = append(flags, "--model")
	}
	if o.Params.TP == 0 {
		flags = append(flags, "--tp")
	}
	if len(flags) == 0 || engineconfig.DefaultBlockTokens(o.Engine) == 0 {
		return "no flag makes them exact; see the engine's own log"
	}
	return "exact sizes, which " + strings.Join(flags, " and ") + " would give"
}

// diskBytes returns what the files of all ranks may occupy, 0 if that has no bound.
// reserved reports whether they occupy it from the start.
func (e *engine) diskBytes() (bytes int64, reserved bool) {
	if e.need.DiskReserved || e.need.DiskShared {
		return e.need.DiskBytes, e.need.DiskReserved
	}
	ranks := int64(max(e.ranks, 1))
	return ranks * min(e.need.DiskBytes, math.MaxInt64/ranks), false
}

// checkEngine finds out what the engine needs, from its configuration if there is one.
func checkEngine(ctx context.Context, o *Options) *engine {
	e := &engine{}
	if o.Engine == "" {
		return e
	}
	e.ranks = max(o.Params.TP, 1)
	if o.ConfigFile == "" {
		if file, found := engineconfig.InEnvironment(o.Engine, o.Host.LookupEnv); found && file == "" {
			e.readEnvironment(o)
		} else if found {
			o.ConfigFile = file
		}
	}
	if o.ConfigFile != "" {
		e.readConfig(ctx, o)
	}
	e.checkNames(o)
	if e.config != nil {
		e.need, e.mount = e.config.Need, e.config.Mount
		if o.Params.TP == 0 {
			e.ranks = max(e.config.TP, 1)
		}
	} else {
		need, err := engineconfig.NeedOf(o.Engine, o.Params)
		if err != nil {
			e.findings = append(e.findings, Finding{ID: "engine", Status: Failure, Found: err.Error(), Needed: "a valid deployment"})
			return e
		}
		e.need = need
	}
	e.title = fmt.Sprintf("%s with %s", o.Engine, plural(e.ranks, "rank"))
	if e.need.Assumed != "" {
		e.findings = append(e.findings, Finding{ID: "engine", Status: Note, Found: "the sizes assume " + e.need.Assumed, Needed: o.missing()})
	}
	e.shmBytes = e.need.ShmBytes(e.ranks)
	e.registrations = int64(e.need.Rings+e.need.Iovs) * int64(e.ranks)
	return e
}
