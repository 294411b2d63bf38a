package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/advise/doctor"
	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/logging"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

type serveCmd struct {
	Config configFile `placeholder:"FILE" help:"YAML file whose keys are the names of these flags, e.g. 'data: /var/lib/kv3fs'. The environment and the command line override it."`
	Check  bool       `env:"-" yaml:"-" help:"Check the flags, the environment and the configuration file, print the values in effect as a configuration file, with where each comes from, and exit."`

	CheckState bool `env:"-" yaml:"-" help:"Check whether a daemon with these flags would take over from the one that serves now, its rings, its mount and all that is open there, and exit: 0 if it would, else 1, with the difference. Nothing is changed. kv3fs upgrade asks the new version so."`

	Takeover bool `env:"-" yaml:"-" help:"Take over from the daemon that serves now, by another process, as from another container of a pod: rings, the mount and all that is open there go on. Both need --restart-state with the same directory. If this process fails before it serves, the other one goes on."`

	Data  string     `required:"" placeholder:"DIR" help:"Directory that stores the files, as ordinary files, on a local disk or any mounted file system. Created if missing."`
	Fresh freshFlags `embed:""`

	Mount string `required:"" placeholder:"DIR" help:"Where clients see the files, e.g. /mnt/3fs. Created if missing. A dead daemon's mount there is replaced."`
	dataFlags
	Cluster string `default:"kv3fs" help:"Name of the file system; the mount's source is hf3fs.CLUSTER. At most 31 letters, digits, '.', '_' or '-'."`

	Identity identityName `placeholder:"NAME" help:"Under which name this host keeps its page index in the data directory's .kv3fs. Give each host its own where several share a directory and are containers, and the same one again after a move. Default: by the machine, whatever its host name; in a container by its host name or the running kernel."`

	Shared sharedFlag `default:"auto" enum:"auto,on,off" help:"Whether other hosts may change the files below --data. on: reads and writes use no page cache, a write is complete when every host can read it, passthrough is off, and the kernel's timeouts are 1s. auto: on for network and distributed file systems, and for FUSE ones that are not known. docs/hosts.md"`

	IO         string        `name:"io" default:"auto" enum:"auto,buffered,direct" help:"How bytes reach the disk. buffered: through the page cache. direct: bypassing it, for requests aligned to 4 KiB; what it has is written through it. auto: reads of 128 KiB and more take what the page cache has and read the rest directly; writes go through the page cache. Where --shared is in effect, auto and direct use no page cache at all, and buffered is refused; with --shared auto and a file system behind FUSE that is not known, buffered stays and --shared is not in effect."`
	Checksums  string        `default:"on" enum:"on,off" help:"on: keep checksums of what is written through the rings, or through a mount without passthrough, and compare them when it is read through the rings: what is damaged completes with EIO, which engines take for a miss. docs/integrity.md"`
	Deadline   time.Duration `default:"5s" range:"1ms..24h" help:"Time after which a ring request completes with ETIMEDOUT and, where --shared is in effect, a call of the mount with EIO. Raise it for a slow distributed file system."`
	Workers    int           `default:"64" range:"1..4096" help:"Number of ring requests executed at once, per priority. Raise it for a device that needs more requests in flight."`
	SlowIO     slowIO        `name:"slow-io" default:"1s" range:"off..1h" placeholder:"TIME" help:"From when on a ring request is logged as slow, with its file and where the time went, or off. One line a minute for each cause; docs/logs.md"`
	BlockBytes byteSize      `default:"1MiB" placeholder:"SIZE" range:"4KiB..1GiB" help:"st_blksize of files, a power of two. It corresponds to 3FS's chunk size: punched holes are multiples of it."`

	AllowOther   bool          `help:"Let other users access the mount. Always on for root; a daemon of another user needs user_allow_other in /etc/fuse.conf."`
	Passthrough  string        `default:"auto" enum:"auto,off" help:"auto: the kernel itself reads, writes and maps the mount's files where it can (Linux 6.9 or later, root). off: it never does, and MAP_SHARED is refused (ENODEV)."`
	Remount      string        `placeholder:"DIR" help:"A second path under which clients see the mount, e.g. in containers; the names rm-rf and mv: in 3fs-virt accept it too."`
	Readonly     bool          `help:"Refuse every change with EROFS. The data directory need not be writable; if it is not, there is no page service, and nothing keeps a second daemon from serving it."`
	RestartState string        `default:"auto" placeholder:"DIR" help:"auto: a directory below /run/kv3fs, if the daemon is root and /run a tmpfs, by which clients' rings outlive the daemon, and the mount where somebody keeps its descriptor: after a crash, a restart or an upgrade, the next one goes on with them. Or the path of such a directory, in a tmpfs and the daemon's alone. off: rings and the mount end with the daemon. docs/operations.md"`
	Drain        time.Duration `default:"10s" range:"0s..24h" help:"How long to wait after SIGTERM or SIGINT for clients to leave the mount, before they are cut off. A second signal ends the daemon at once; the next daemon replaces the dead mount."`

	OnTerm onTerm `default:"auto" enum:"auto,stop,handover" help:"What SIGTERM and SIGINT ask for. stop: nobody goes on, and what is kept for a next daemon is closed. handover: another daemon does; systemd's store, or kv3fs hold, keeps the listeners for it and, with --restart-state, the mount, and what clients ask waits meanwhile. auto: systemctl restart hands over, all else is a stop."`

	AttrTimeout     cacheTime     `default:"auto" range:"auto..8760h" placeholder:"TIME" help:"How long the kernel may cache attributes; auto: 30s, or 1s where --shared is in effect. Changes through this mount and its rings are visible at once in any case; lower it if other programs change the data directory."`
	EntryTimeout    cacheTime     `default:"auto" range:"auto..8760h" placeholder:"TIME" help:"How long the kernel may cache names; auto: 30s, or 1s where --shared is in effect."`
	NegativeTimeout cacheTime     `default:"auto" range:"auto..8760h" placeholder:"TIME" help:"How long the kernel may cache that a name does not exist; auto: 5s, or 1s where --shared is in effect."`
	SymlinkTimeout  time.Duration `default:"5s" range:"0s..8760h" help:"How long the kernel may cache a name made under 3fs-virt."`

	PagesListen []string   `placeholder:"[NAME=]HOST:PORT" help:"Address of the page service for vLLM and SGLang: HOST:PORT, unix:PATH, or off. Give several separated by commas, or repeat the flag. NAME= binds an address to a namespace. Default: 127.0.0.1:18000, if nothing listens there yet."`
	PagesFiles  []pageDir  `placeholder:"[NAME=]DIR" help:"Directory, below the mount, whose page files have their pages from this daemon's page service, in namespace NAME. With --capacity they may then go, as the last resort, when nobody has them open: each with the keys that are in it. Otherwise they never go. Give several separated by commas, or repeat the flag. docs/keeper.md"`
	TP          int        `name:"tp" placeholder:"N" range:"1..4096" help:"Number of vLLM ranks that must store a key before the page service reports it. Default: all that have initialised."`
	Pages       pagesFlags `embed:"" prefix:"pages-"`

	Limits limitFlags  `embed:"" prefix:"limit-"`
	Keeper keeperFlags `embed:""`
	Admin  adminFlags  `embed:"" prefix:"admin-"`

	Trace traceFlags `embed:"" prefix:"trace-"`
	Log   logFlags   `embed:"" prefix:"log-"`
}

// Help is what "kv3fs serve --help" adds to the flags.
func (*serveCmd) Help() string {
	return `For example:

  kv3fs serve --data /var/lib/kv3fs --mount /mnt/3fs

This is a whole 3FS on one host. It takes the place of the mini3fs that vLLM's page on
HF3FSKVConnector and the guide of its operator set up (m3fs cluster create-standalone, m3fs
client mount): vLLM's hf3fs_storage_path is a directory below --mount. It also runs the
page service that vLLM asks on port 18000 (hf3fs_metadata_server) and SGLang calls
mini_3fs_metadata_server.`
}

// Run serves until ctx ends.
func (c *serveCmd) Run(ctx serverContext, values *flagValues, kctx *kong.Context, out io.Writer, tell *teller) error {
	if c.Check {
		if _, err := c.pageService(slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		if _, err := c.Admin.config(); err != nil {
			return err
		}
		if _, err := c.Trace.config(); err != nil {
			return err
		}
		return values.write(out, kctx.Selected())
	}
	if err := c.check(c.Data); err != nil {
		return err
	}
	tuneCollector()
	mode, err := blockio.ParseMode(c.IO)
	if err != nil {
		return err
	}
	passthrough := fuseserver.PassthroughAuto
	if c.Passthrough == "off" {
		passthrough = fuseserver.PassthroughOff
	}
	var lines *logging.Log
	log := slog.New(slog.DiscardHandler)
	if !c.CheckState {
		lines = c.Log.open(tell, everything)
		log = lines.Logger()
	}
	pageService, err := c.pageService(log)
	if err != nil {
		return err
	}
	fresh, err := c.Fresh.fresh()
	if err != nil {
		return err
	}
	adminWeb, err := c.Admin.config()
	if err != nil {
		return err
	}
	traces, err := c.Trace.config()
	if err != nil {
		return err
	}
	set := settings.Defaults()
	set.Readonly = c.Readonly
	set.AttrTimeout, set.EntryTimeout = time.Duration(c.AttrTimeout), time.Duration(c.EntryTimeout)
	set.NegativeTimeout, set.SymlinkTimeout = time.Duration(c.NegativeTimeout), c.SymlinkTimeout

	// The program that reads our output may exit before we do. A failed write must not
	// kill the daemon and leave its mount behind.
	signal.Ignore(syscall.SIGPIPE)
	// Clients decide the modes of files: the kernel has applied their umask.
	syscall.Umask(0)
	// What users write counts against their quotas, not against ours.
	if err := cred.ObeyQuotas(); err != nil {
		log.Warn("users can exceed their disk quotas; use a binary built without cgo", "err", err)
	}
	// A thread that waits for a disk or a semaphore keeps its P until the runtime's
	// monitor notices. With more Ps, no goroutine waits for that.
	runtime.GOMAXPROCS(max(4*runtime.NumCPU(), 8))

	config := daemon.Config{
		Version: version(), DataDir: c.Data, Fresh: fresh, Identity: string(c.Identity), MountPoint: c.Mount, RemountPrefix: c.Remount,
		Mount:     fuseserver.Options{Cluster: c.Cluster, AllowOther: c.AllowOther, Passthrough: passthrough, BlockBytes: uint32(c.BlockBytes)},
		Settings:  set,
		Sharing:   c.Shared.sharing(),
		IO:        mode,
		Rings:     ringserver.Options{Deadline: c.Deadline, Workers: c.Workers, SlowIO: time.Duration(c.SlowIO)},
		Pages:     pageService,
		Limits:    c.Limits.limits(),
		Keeping:   c.Keeper.keeping(),
		Admin:     adminWeb,
		Tracing:   traces,
		Checksums: c.Checksums == "on",
		Drain:     c.Drain,

		RestartState: c.RestartState,
		Doctor:       c.examine,
		Log:          log, Lines: lines,
		Reload:      newRereader(values, kctx.Selected(), lines, adminWeb.Token).serve,
		Hangups:     tell.hangups.follow(),
		Descriptors: tell.inherited,
		HandsOver:   func() bool { return c.OnTerm.handsOver(log) },
		Args:        os.Args,
	}
	if c.CheckState {
		report, err := daemon.CheckState(config)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "kv3fs %s %s\n", version(), report)
		return err
	}
	var from *daemon.Takeover
	if c.Takeover {
		if from, err = daemon.TakeOver(ctx, config); err != nil {
			return err
		}
		config.Args = slices.DeleteFunc(slices.Clone(config.Args), func(arg string) bool { return arg == "--takeover" || arg == "--takeover=true" }) // another one has nobody to take over from
	}
	err = daemon.Run(ctx, config, func(point string) {
		if from != nil {
			from.Serves(log)
		}
		lines.Always().Info("serving", "data", c.Data, "mount", point, "source", "hf3fs."+c.Cluster, "pid", os.Getpid())
	})
	if errors.Is(err, daemon.ErrCutOff) {
		log.Warn("stopped, but clients were cut off", "err", err)
		return exitStatus(exitCutOff)
	}
	return err
}

// examine has the doctor look at the running daemon, worst first. It measures no disk, which engines are using.
func (c *serveCmd) examine(ctx context.Context) ([]api.Finding, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	mount, err := filepath.Abs(c.Mount)
	if err != nil {
		return nil, err
	}
	data, err := filepath.Abs(c.Data)
	if err != nil {
		return nil, err
	}
	report := doctor.Run(ctx, doctor.Options{Mount: mount, Data: data, NoBandwidth: true, Host: host.Local(), Probe: []string{self, "probe"}})
	if report.Interrupted {
		return nil, ctx.Err()
	}
	slices.SortStableFunc(report.Findings, func(a, b doctor.Finding) int { return int(b.Status) - int(a.Status) })
	found := []api.Finding{}
	for _, f := range report.Findings {
		found = append(found, api.Finding{ID: f.ID, Status: f.Status.String(), Found: f.Found, Needed: f.Needed, Fix: f.Fix})
	}
	return found, nil
}

// Validate reports invalid flags.
func (c *serveCmd) Validate() error {
	switch o := (fuseserver.Options{Cluster: c.Cluster, BlockBytes: uint32(c.BlockBytes)}); {
	case o.Check() != nil && c.BlockBytes&(c.BlockBytes-1) != 0:
		return bad("block-bytes", "%v is not a power of two", c.BlockBytes)
	case o.Check() != nil:
		return bad("cluster", "%v", o.Check())
	case c.Remount != "" && !filepath.IsAbs(c.Remount):
		return bad("remount", "%q is not an absolute path", c.Remount)
	}
	if err := c.apart(); err != nil {
		return err
	}
	if err := c.Keeper.validate(); err != nil {
		return err
	}
	_, err := c.Fresh.fresh()
	return err
}

// apart reports a data directory below the mount point, where the daemon would wait for
// itself, or the reverse, where clients would find the mount in itself. It judges by names:
// the mount of a dead daemon may not answer.
func (c *serveCmd) apart() error {
	data, err := filepath.Abs(c.Data)
	if err != nil {
		return err
	}
	mount, err := filepath.Abs(c.Mount)
	switch {
	case err != nil:
		return err
	case host.Within(data, mount):
		return bad("data", "%s is below the mount point %s; they must be apart", data, mount)
	case host.Within(mount, data):
		return bad("mount", "%s is below the data directory %s; they must be apart", mount, data)
	}
	return nil
}

// pageService returns the configuration of the page service. Without --pages-listen the
// service is optional: its default address may be in use.
func (c *serveCmd) pageService(log *slog.Logger) (daemon.Pages, error) {
	listen := c.PagesListen
	switch {
	case len(listen) == 0:
		listen = []string{defaultPagesListen}
	case slices.Equal(listen, []string{"off"}):
		if len(c.PagesFiles) > 0 {
			return daemon.Pages{}, bad("pages-files", "there is no page service, since --pages-listen is off: leave out one of them")
		}
		return daemon.Pages{}, nil
	}
	if len(c.PagesFiles) > 0 && c.Pages.Store != httpserver.Embedded {
		return daemon.Pages{}, bad("pages-files", "page files cannot be removed while the page index is in etcd: the file system of this host does not tell whether another host's engine has one open: leave it out; page files then stay, so give engines as many pages as may stay for good, and --capacity room for them")
	}
	p, err := c.Pages.config("pages-", listen, c.TP, stopLimit, log)
	p.Optional = len(c.PagesListen) == 0
	for _, d := range c.PagesFiles {
		p.Files = append(p.Files, daemon.PageDir(d))
	}
	return p, err
}

// pageDir is the value of --pages-files.
type pageDir daemon.PageDir

// UnmarshalText parses [NAME=]DIR.
func (d *pageDir) UnmarshalText(text []byte) error {
	d.Dir = string(text)
	if name, dir, ok := strings.Cut(d.Dir, "="); ok && httpserver.ValidNamespace(name) {
		d.Namespace, d.Dir = name, dir
	}
	if d.Dir == "" {
		return errors.New("want [NAME=]DIR")
	}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (d pageDir) MarshalText() ([]byte, error) {
	if d.Namespace == "" {
		return []byte(d.Dir), nil
	}
	return []byte(d.Namespace + "=" + d.Dir), nil
}
