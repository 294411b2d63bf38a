package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
)

type serveCmd struct {
	Config kong.ConfigFlag `placeholder:"FILE" help:"YAML file of flag names and values, e.g. 'data: /var/lib/kv3fs'. The environment and the command line win over it."`

	Data    string `required:"" placeholder:"DIR" help:"Directory that holds the files, as ordinary files. Made if missing; on a local disk or on any mounted file system."`
	Mount   string `required:"" placeholder:"DIR" help:"Where clients see the files, e.g. /mnt/3fs. Made if missing. A mount that a dead daemon left there is taken over."`
	Cluster string `default:"kv3fs" help:"Name of the file system; the mount's source is hf3fs.CLUSTER. At most 31 letters, digits, '.', '_' or '-'."`

	IO         string        `name:"io" default:"auto" enum:"auto,buffered,direct" help:"How bytes reach the disk. buffered: through the page cache. direct: past it, for requests aligned to 4 KiB. auto: reads of 128 KiB and more take what the page cache has and the rest directly; writes go through the page cache."`
	Deadline   time.Duration `default:"5s" help:"Longest time a ring request may take; then it completes with ETIMEDOUT. Raise it for a slow distributed file system."`
	Workers    int           `default:"64" help:"Ring requests executed at once, per priority. Raise it for a device that wants more in flight."`
	BlockBytes uint32        `default:"1048576" help:"st_blksize of files, which plays the part of 3FS's chunk size: punched holes are multiples of it. A power of two."`

	AllowOther  bool          `help:"Let other users in. Always so for root; others need user_allow_other in /etc/fuse.conf."`
	Passthrough string        `default:"auto" enum:"auto,off" help:"Let the kernel read and write files of the mount itself (Linux 6.9 and later, root), or never."`
	Remount     string        `placeholder:"DIR" help:"A second path under which clients see the mount, e.g. in containers; rm-rf and mv: accept it too."`
	Readonly    bool          `help:"Refuse every change, EROFS."`
	Drain       time.Duration `default:"10s" help:"How long SIGTERM waits for clients to leave the mount before they are cut off. A second SIGTERM ends the daemon at once; the next one takes the dead mount over."`

	AttrTimeout     time.Duration `default:"30s" help:"How long the kernel may keep attributes. Changes through this mount and its rings are seen at once regardless; lower it when others change the data directory."`
	EntryTimeout    time.Duration `default:"30s" help:"How long the kernel may keep names."`
	NegativeTimeout time.Duration `default:"5s" help:"How long the kernel may remember that a name does not exist."`
	SymlinkTimeout  time.Duration `default:"5s" help:"How long the kernel may keep a name made under 3fs-virt."`

	PagesListen []string   `placeholder:"[NAME=]HOST:PORT" help:"Where the page service of vLLM and SGLang listens, or unix:PATH, or off; several, separated by commas or by giving the flag again. NAME= binds an address to a namespace. Default: 127.0.0.1:18000, if nothing listens there yet."`
	TP          int        `name:"tp" placeholder:"N" help:"Ranks of vLLM that make a key of the page service complete. Default: as many as have initialised."`
	Pages       pagesFlags `embed:"" prefix:"pages-"`

	LogLevel  slog.Level `default:"INFO" help:"DEBUG, INFO, WARN or ERROR."`
	LogFormat string     `default:"text" enum:"text,json" help:"Form of the log on standard error."`
}

func (c *serveCmd) Run(ctx context.Context) error {
	mode, err := blockio.ParseMode(c.IO)
	if err != nil {
		return err
	}
	passthrough := fuseserver.PassthroughAuto
	if c.Passthrough == "off" {
		passthrough = fuseserver.PassthroughOff
	}
	log := newLogger(c.LogLevel, c.LogFormat)
	pageService, err := c.pageService(log)
	if err != nil {
		return err
	}
	set := settings.Defaults()
	set.Readonly = c.Readonly
	set.AttrTimeout, set.EntryTimeout = c.AttrTimeout, c.EntryTimeout
	set.NegativeTimeout, set.SymlinkTimeout = c.NegativeTimeout, c.SymlinkTimeout

	// Who reads what we say may go before us. A word that he misses must not end the
	// daemon, with the mount still there.
	signal.Ignore(syscall.SIGPIPE)
	// Modes of files are the clients' affair: the kernel has applied their umask.
	syscall.Umask(0)
	// A thread that waits for a disk or a semaphore keeps its processor until the
	// runtime's monitor notices; with more of them nobody has to wait for that.
	runtime.GOMAXPROCS(max(4*runtime.NumCPU(), 8))

	return daemon.Run(ctx, daemon.Config{
		Version: version(), DataDir: c.Data, MountPoint: c.Mount, RemountPrefix: c.Remount,
		Mount:    fuseserver.Options{Cluster: c.Cluster, AllowOther: c.AllowOther, Passthrough: passthrough, BlockBytes: c.BlockBytes},
		Settings: set,
		IO:       mode,
		Rings:    ringserver.Options{Deadline: c.Deadline, Workers: c.Workers},
		Pages:    pageService,
		Drain:    c.Drain,
		Log:      log,
	}, func(point string) {
		fmt.Fprintf(os.Stderr, "kv3fs: serving %s at %s (hf3fs.%s), pid %d\n", c.Data, point, c.Cluster, os.Getpid())
	})
}

// Validate finds what was asked wrongly.
func (c *serveCmd) Validate() error { return errors.Join(c.Pages.Validate(), validTP(c.TP)) }

// pageService is the page service as asked for. One that was not asked for may be
// missing.
func (c *serveCmd) pageService(log *slog.Logger) (daemon.Pages, error) {
	listen := c.PagesListen
	switch {
	case len(listen) == 0:
		listen = []string{defaultPagesListen}
	case slices.Equal(listen, []string{"off"}):
		return daemon.Pages{}, nil
	}
	p, err := c.Pages.config(listen, c.TP, stopPatience, log)
	p.Optional = len(c.PagesListen) == 0
	return p, err
}

func newLogger(level slog.Level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
