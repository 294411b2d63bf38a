package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/spelling"
	"github.com/kv3fs/kv3fs/kvstore"
)

// benchChain holds the flags that choose the stores and where they keep their blocks.
type benchChain struct {
	Store    string `env:"-" placeholder:"CHAIN" help:"A store, or a chain of stores such as \"Cache|Ds3fs\". Default: the one in --config, otherwise Ds3fs."`
	Dir      string `env:"-" placeholder:"DIR" help:"Directory for the blocks of Posix or Segment, or for the file of Pages. The benchmark leaves them there. Default: one below --scratch that is removed afterwards."`
	Near     string `env:"-" placeholder:"DIR" help:"Directory on this host's own disk for Segment in front of another store, as in Cache|Segment|Ds3fs. The benchmark leaves the blocks there. Default: one below --scratch that is removed afterwards; each process of the benchmark has its own."`
	Mount    string `env:"-" placeholder:"DIR" help:"Mount of a 3FS for the blocks of Ds3fs. The benchmark leaves them there. Default: the benchmark starts and stops its own daemon, with its data below --scratch."`
	PagesURL string `env:"-" name:"pages-url" placeholder:"URL" help:"Page service for Pages, http://HOST:PORT or unix:PATH. Default: the benchmark starts and stops its own, with the index beside the file."`
	Config   string `env:"-" placeholder:"FILE" help:"Configuration of the chain: YAML as package kvstore reads it, or UCM's. --store, --dir, --mount, --pages-url and the sizes of the model override it."`
	Scratch  string `placeholder:"DIR" help:"Where the daemon or service that the benchmark starts keeps its data: a directory on the disk to measure, or /dev/shm to leave the disk out. Default: the system's directory for temporary files."`
}

// chain is a configured chain with the processes and directories created for it.
type chain struct {
	name    string
	config  kvstore.UCMConfig
	flags   benchChain
	daemon  *measure.Daemon      // nil if none was started
	pages   *measure.PageService // nil if none was started
	scratch string               // to be removed; "" if none was created
	near    string               // the same, of Segment in front of another store
}

// newChain reads the configuration. It starts nothing.
func newChain(flags benchChain, notice func(string)) (*chain, error) {
	c := &chain{flags: flags}
	if flags.Config != "" {
		text, err := os.ReadFile(flags.Config)
		if err != nil {
			return nil, fmt.Errorf("bench: --config: %w", err)
		}
		config, notes, err := kvstore.ReadConfig(text)
		if err != nil {
			return nil, fmt.Errorf("bench: --config %s: %w", flags.Config, err)
		}
		for _, note := range notes {
			notice(flags.Config + ": " + note)
		}
		c.config = config
	}
	c.name = cmp.Or(flags.Store, c.config.StorePipeline, "Ds3fs")
	if known := kvstore.Chains(); !slices.Contains(known, c.name) {
		if near := spelling.Nearest(c.name, known, 1); len(near) > 0 {
			return nil, fmt.Errorf("bench: --store %.40q is not a chain; did you mean %s?", c.name, near[0])
		}
		return nil, fmt.Errorf("bench: --store %.40q is not a chain; the chains are %s", c.name, strings.Join(known, ", "))
	}
	if err := flags.check(c.last(), c.hasNear()); err != nil {
		return nil, err
	}
	c.config.StorageBackends = cmp.Or(flags.place(c.last()), c.config.StorageBackends)
	c.config.PagesURL = cmp.Or(flags.PagesURL, c.config.PagesURL)
	return c, nil
}

// place returns where, by the flags, a store keeps its blocks.
func (f benchChain) place(store string) string {
	if store == "Ds3fs" {
		return f.Mount
	}
	return f.Dir
}

// check rejects flags of stores other than the last one, which keeps the blocks.
func (f benchChain) check(store string, near bool) error {
	switch {
	case f.Near != "" && !near:
		return errors.New("bench: --near is for Segment in front of another store, as in Cache|Segment|Ds3fs")
	case f.Mount != "" && store != "Ds3fs":
		return fmt.Errorf("bench: --mount is for Ds3fs; use --dir to say where %s keeps its blocks", store)
	case f.Dir != "" && store == "Ds3fs":
		return errors.New("bench: --dir is for Posix, Segment and Pages; for Ds3fs use --mount, or --scratch for a daemon of its own")
	case f.PagesURL != "" && store != "Pages":
		return fmt.Errorf("bench: --pages-url is for Pages, not for %s", store)
	}
	return nil
}

// last returns the store at the end of the chain, which keeps the blocks.
func (c *chain) last() string { return c.name[strings.LastIndex(c.name, "|")+1:] }

// hasNear reports whether Segment is in front of another store.
func (c *chain) hasNear() bool { return strings.Contains(c.name, "Segment|") }

// start starts what the chain needs, unless the flags name it.
func (c *chain) start(ctx context.Context) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	last := c.last()
	switch {
	case c.place() != "" && last == "Ds3fs":
	case c.place() != "":
		if err := os.MkdirAll(c.place(), 0o755); err != nil {
			return fmt.Errorf("bench: --dir: %w", err)
		}
	case last == "Ds3fs":
		if c.daemon, err = measure.StartDaemon(ctx, binary, c.flags.Scratch, "auto"); err != nil {
			return err
		}
		c.config.StorageBackends = c.daemon.Mount
	case last != "Empty":
		if c.scratch, err = os.MkdirTemp(c.flags.Scratch, "kv3fs-bench-"); err != nil {
			return fmt.Errorf("bench: scratch directory: %w", err)
		}
		c.config.StorageBackends = c.scratch
	}
	if c.hasNear() {
		if c.config.SegmentDir = cmp.Or(c.flags.Near, c.config.SegmentDir); c.config.SegmentDir == "" {
			if c.near, err = os.MkdirTemp(c.flags.Scratch, "kv3fs-bench-near-"); err != nil {
				return errors.Join(fmt.Errorf("bench: scratch directory: %w", err), c.stop())
			}
			c.config.SegmentDir = c.near
		}
	}
	// A configuration that names a page file also names the service of its index.
	if last == "Pages" && c.config.PagesURL == "" && c.config.PagesFile == "" {
		if c.pages, err = measure.StartPageService(ctx, binary, filepath.Join(c.place(), "index")); err != nil {
			return errors.Join(err, c.stop())
		}
		c.config.PagesURL = c.pages.URL
	}
	return nil
}

// stop stops what start has started.
func (c *chain) stop() (err error) {
	if c.pages != nil {
		err = c.pages.Stop()
	}
	if c.daemon != nil {
		err = errors.Join(err, c.daemon.Stop())
	}
	for _, dir := range []string{c.scratch, c.near} {
		if dir != "" {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}

// place returns where the blocks are, the first of several places.
func (c *chain) place() string {
	first, _, _ := strings.Cut(c.config.StorageBackends, ":")
	return first
}

// freeBytes returns the free space at place, 0 if it is unknown.
func (c *chain) freeBytes() int64 {
	var st unix.Statfs_t
	if c.place() == "" || unix.Statfs(c.place(), &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// arguments returns the flags with which another process uses the same chain over the
// same storage.
func (c *chain) arguments() []string {
	args := []string{"--store", c.name}
	if c.flags.Config != "" {
		args = append(args, "--config", c.flags.Config)
	}
	if c.pages != nil || c.flags.PagesURL != "" {
		args = append(args, "--pages-url", c.config.PagesURL)
	}
	if c.flags.Scratch != "" {
		args = append(args, "--scratch", c.flags.Scratch)
	}
	switch {
	case c.place() == "":
	case c.last() == "Ds3fs":
		args = append(args, "--mount", c.place())
	default:
		args = append(args, "--dir", c.config.StorageBackends)
	}
	return args
}

// cacheBytes bounds the size of a Cache whose size is not configured. A benchmark opens
// the chain many times, and the Cache may be smaller than the data that passes through it.
const cacheBytes = 2 << 30

// open opens the chain for the blocks of a benchmark.
func (c *chain) open(_ context.Context, w enginebench.Want) (*kvstore.Store, error) {
	config := c.config
	config.Namespace, config.BlockSize, config.ShardSize = w.Namespace, w.Layout.BlockBytes, w.Layout.ShardBytes
	config.TensorSize = 0
	if strings.HasPrefix(c.name, "Cache|") && config.CacheBufferBytes == 0 && config.CacheBufferCapacityGB == 0 {
		config.CacheBufferBytes = min(cacheBytes, 2*w.StoredBytes+64<<20)
	}
	// A directory or file of these stores holds blocks of one size only.
	own := filepath.Join(c.place(), w.Namespace.Fingerprint().String())
	capacity := w.StoredBytes + w.StoredBytes/2 + 256<<20
	switch c.last() {
	case "Segment":
		config.StorageBackends, config.SegmentDir = own, ""
		if config.SegmentCapacityGB == 0 && config.SegmentCapacityBytes == 0 {
			config.SegmentCapacityBytes = capacity
		}
	case "Pages":
		config.StorageBackends = ""
		if config.PagesFile == "" {
			config.PagesFile = own
		}
		if config.PagesCapacityGB == 0 && config.PagesCapacityBytes == 0 {
			config.PagesCapacityBytes = capacity
		}
	}
	if c.hasNear() {
		config.SegmentDir = filepath.Join(config.SegmentDir, w.Namespace.Fingerprint().String())
		if config.SegmentCapacityGB == 0 && config.SegmentCapacityBytes == 0 {
			config.SegmentCapacityBytes = capacity
		}
	}
	typed, err := config.Config(c.name)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	typed.Speed = w.Speed
	s, err := kvstore.Open(c.name, typed)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return s, nil
}
