package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/hostsbench"
	"github.com/kv3fs/kv3fs/internal/shellwords"
)

type benchHostsCmd struct {
	Hosts       int      `env:"-" default:"3" range:"2..64" help:"Number of hosts. Without --host-command they are processes on this machine."`
	Near        []string `env:"-" placeholder:"DIR" help:"Directory on each host's own disk: one for all, in which each host gets one, or one for each host. Default: below --scratch."`
	Far         []string `env:"-" placeholder:"DIR" help:"Directory that all hosts share, or the mount of a 3FS for Ds3fs: one for all, or one for each host, as it sees it. Default: below --scratch."`
	HostCommand string   `env:"-" placeholder:"CMD" help:"What runs a command on a host, with {host} for its number: \"scripts/hosts exec {host}\". This binary and the directory for temporary files must be there under the same names."`
	Scratch     string   `placeholder:"DIR" help:"Where directories are made that are not given. Default: the system's directory for temporary files."`
	Store       string   `default:"Cache|Segment|Posix" env:"-" placeholder:"CHAIN" help:"Chain with Segment in front of another store. Default: ${default}."`

	Orders       []string       `enum:"grouped,shuffled,round-robin" default:"grouped,shuffled,round-robin" placeholder:"HOW" help:"Orders of the queries: grouped (all of a group, then the next), shuffled, round-robin. Default: all three."`
	Groups       int            `placeholder:"N" range:"1..1048576" help:"Groups of queries with the same prefix. Default: 100."`
	Queries      int            `placeholder:"N" range:"1..1048576" help:"Queries of each group. Default: 20."`
	PromptTokens int            `placeholder:"N" range:"2..4194304" help:"Tokens of a prefix. Default: 20000."`
	OutputTokens int            `placeholder:"N" range:"1..1048576" help:"Tokens to generate for each query. Default: 64."`
	Concurrency  int            `placeholder:"N" range:"1..1024" help:"Concurrent requests. Default: 8."`
	Model        string         `placeholder:"NAME" help:"Model, optionally with its GPUs after an @. Default: as in bench engine shared-prefix."`
	EngineMemory engineMemory   `placeholder:"SIZE" help:"The engine's own prefix cache in GPU memory: a size, none or auto. Default: auto."`
	Scale        int64          `placeholder:"N" range:"1..1048576" help:"Make blocks, and the simulated bandwidth, N times smaller. Default: small enough for this machine."`
	TimeScale    float64        `placeholder:"N" range:"1..1e6" help:"Run the simulated engine N times faster. Default: 8."`
	Bandwidth    simulatedSpeed `default:"3fs" placeholder:"RATE" help:"Bandwidth of the simulated stores, or none for their own. Default: ${default}."`
	Seed         uint64         `placeholder:"N" range:"1.." help:"Decides the prompts. Default: a random one, which the report shows."`

	ReadTime  time.Duration `default:"3s" range:"10ms..1h" help:"Length of each read from the hosts' own disks."`
	ReadBytes byteSize      `default:"256MiB" placeholder:"SIZE" range:"32MiB..1TiB" help:"What each host has there. Default: ${default}."`
	DirectIO  bool          `name:"direct-io" help:"These reads bypass the page cache."`
	RingTime  time.Duration `default:"500ms" range:"1ms..1h" help:"Length of a run of rings."`
	Parts     []string      `enum:"engine,reads,rings,pages" placeholder:"PART" help:"What is measured: engine (the time to the first token), reads (from own disks), rings (in shared mode; the daemon has its data below --scratch), pages. Default: all, and pages where --pages-url is given."`

	PagesURL        []string `env:"-" name:"pages-url" placeholder:"URL" help:"Page services of hosts that share an index, http://HOST:PORT, the leader's first: the others are compared with it. The benchmark uses a namespace of its own."`
	FailoverCommand string   `env:"-" placeholder:"CMD" help:"Command that ends the leader of the page services: \"scripts/hosts kill 1\". Measures for how long the last of --pages-url answers nothing."`

	JSON       bool   `name:"json" help:"Print the report as JSON instead of a table."`
	HTML       string `name:"html" placeholder:"FILE" help:"Also write the report as an HTML page with plots."`
	NoProgress bool   `help:"Do not say what is being measured."`

	// Reader makes this process a reader on a host, for the process that starts it.
	Reader string `hidden:""`
}

// Help is what "kv3fs bench hosts --help" adds to the flags.
func (*benchHostsCmd) Help() string {
	return `For example:

  kv3fs bench hosts --scratch /dev/shm --groups 20 --html report.html
  kv3fs bench hosts --near /nvme0,/nvme1,/nvme2 --far /mnt/shared
  scripts/hosts up 3 && kv3fs bench hosts --host-command "scripts/hosts exec {host}" \
    --near /mnt/disk --far /mnt/data
  kv3fs bench hosts --pages-url http://10.99.0.1:18000,http://10.99.0.2:18000 \
    --failover-command "scripts/hosts kill 1"

The workload of "kv3fs bench engine shared-prefix" on several hosts: each has host memory
and a disk of its own, and all share a directory. The first host fills it; the second one
has just joined and has nothing; then it gets other queries of the same groups, when its
own disk has the prefixes. The report compares with computing everything, with the engine's
own memory alone, and with the ideal, and says what came from which store.

Also: how reads from the hosts' own disks scale, rings of a daemon in shared mode beside
plain O_DIRECT reads, and page services beside the leader's. Every loaded byte is checked.`
}

// Run runs the benchmark.
func (c *benchHostsCmd) Run(ctx context.Context, out io.Writer, values *flagValues) (err error) {
	if c.Reader != "" {
		return hostsbench.Read(ctx, c.Reader, os.Stdin, out)
	}
	bar := newBenchBar(c.NoProgress)
	scratch := ""
	if len(c.Near) == 0 || len(c.Far) == 0 {
		if scratch, err = os.MkdirTemp(c.Scratch, "kv3fs-bench-"); err != nil {
			return fmt.Errorf("bench: scratch directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	}
	o, err := c.options(scratch)
	if err != nil {
		return mistake{err}
	}
	if !c.NoProgress {
		o.Notice = bar.notice
	}
	if err := o.Check(); err != nil {
		return mistake{err}
	}
	page, err := newPage(c.HTML)
	if err != nil {
		return err
	}
	defer page.abandon()
	report, err := hostsbench.Run(ctx, o)
	bar.clear()
	err = printMeasured(ctx, out, values, "bench hosts", report, err, c.JSON)
	if report != nil {
		err = errors.Join(err, page.write(report, values.circumstances()))
	}
	return err
}

func (c *benchHostsCmd) options(scratch string) (o hostsbench.Options, err error) {
	binary, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("bench: %w", err)
	}
	o = hostsbench.Options{
		Binary: binary, Store: c.Store, Orders: c.Orders, Engine: c.engineArguments(), Seed: c.Seed,
		ReadTime: c.ReadTime, ReadBytes: int64(c.ReadBytes), DirectIO: c.DirectIO, RingTime: c.RingTime, PagesURLs: c.PagesURL,
		Parts: c.Parts, RingScratch: c.Scratch,
	}
	if o.Failover, err = words("--failover-command", c.FailoverCommand); err != nil {
		return o, err
	}
	for i := range c.Hosts {
		number := strconv.Itoa(i + 1)
		h := hostsbench.Host{}
		if h.Near, err = ofHost("--near", c.Near, c.Hosts, i, filepath.Join(scratch, "near")); err != nil {
			return o, err
		}
		if h.Far, err = ofHost("--far", c.Far, c.Hosts, i, filepath.Join(scratch, "far")); err != nil {
			return o, err
		}
		if h.Command, err = words("--host-command", strings.ReplaceAll(c.HostCommand, "{host}", number)); err != nil {
			return o, err
		}
		if len(c.Near) < 2 { // one for all; on other machines they may be named alike
			h.Near = filepath.Join(h.Near, "host"+number)
		}
		o.Hosts = append(o.Hosts, h)
	}
	return o, nil
}

// ofHost returns the directory of a host, of one for all or one for each.
func ofHost(flag string, given []string, hosts, host int, standard string) (string, error) {
	switch len(given) {
	case 0:
		return standard, nil
	case 1:
		return given[0], nil
	case hosts:
		return given[host], nil
	}
	return "", fmt.Errorf("bench: %s names %d directories for %d hosts; give one, or one for each", flag, len(given), hosts)
}

// words returns the words of a command.
func words(flag, command string) ([]string, error) {
	if command == "" {
		return nil, nil
	}
	all, err := shellwords.Split(command)
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", flag, err)
	}
	return all, nil
}

// engineArguments are those of "bench engine shared-prefix" on each host.
func (c *benchHostsCmd) engineArguments() (args []string) {
	add := func(flag string, given bool, value string) {
		if given {
			args = append(args, flag, value)
		}
	}
	add("--groups", c.Groups > 0, strconv.Itoa(c.Groups))
	add("--queries", c.Queries > 0, strconv.Itoa(c.Queries))
	add("--prompt-tokens", c.PromptTokens > 0, strconv.Itoa(c.PromptTokens))
	add("--output-tokens", c.OutputTokens > 0, strconv.Itoa(c.OutputTokens))
	add("--concurrency", c.Concurrency > 0, strconv.Itoa(c.Concurrency))
	add("--models", c.Model != "", c.Model)
	add("--engine-memory", c.EngineMemory.bytes != 0, c.EngineMemory.text())
	add("--scale", c.Scale > 0, strconv.FormatInt(c.Scale, 10))
	add("--time-scale", c.TimeScale > 0, strconv.FormatFloat(c.TimeScale, 'g', -1, 64))
	bandwidth := "none"
	if c.Bandwidth.bytesPerSecond > 0 {
		bandwidth = strconv.FormatInt(int64(c.Bandwidth.bytesPerSecond), 10) + "B/s"
	}
	add("--bandwidth", true, bandwidth)
	return args
}
