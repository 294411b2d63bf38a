package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// pagesCmd runs the page service alone, or operates one that runs.
type pagesCmd struct {
	Serve pagesServeCmd `cmd:"" help:"Run the page service alone, without a mount."`
	Stat  pagesStatCmd  `cmd:"" help:"Show the state of a running page service."`
	LS    pagesListCmd  `cmd:"" name:"ls" help:"List keys and their pages."`
	Evict pagesEvictCmd `cmd:"" help:"Forget the least recently used keys now. Engines notice only misses."`
	Clear pagesClearCmd `cmd:"" help:"Forget all keys. Engines go on, and fill the files again."`

	ForgetRank pagesForgetRankCmd `cmd:"" help:"Forget a rank that will not come back, so that keys are complete without it."`
}

// defaultPagesListen is where vLLM expects the service: on its own host, nowhere else.
const defaultPagesListen = "127.0.0.1:18000"

// pagesFlags are the flags of "pages serve", and of "serve" with the prefix pages-.
type pagesFlags struct {
	Lease      time.Duration `default:"30s" help:"How long a page is not written after a reader was told its location. Must be above the longest time that an engine takes to load a batch."`
	Hold       time.Duration `default:"5s" help:"How long a key is kept after the service reported that it exists, so that it is still there when it is loaded."`
	Reserve    time.Duration `default:"60s" help:"How long a writer has to write and confirm a page; then it loses the page."`
	Quarantine time.Duration `default:"10s" help:"How long a page that was given up is kept from other writers."`

	BodyLimit   int64 `default:"8388608" placeholder:"BYTES" help:"Largest body of a request; larger ones get 413."`
	BatchLimit  int   `default:"65536" placeholder:"KEYS" help:"Most keys of one request; more get 413."`
	Concurrency int   `default:"512" placeholder:"N" help:"Requests executed at once; others get 503, and engines try again."`

	TokenFile string `type:"path" placeholder:"FILE" help:"File with a token that engines must send, as a bearer token or as the password of Basic: SGLang's URL may be http://kv3fs:TOKEN@host:18000, and vLLM's requests read ~/.netrc. /healthz and /readyz stay open."`
}

// Validate checks the values of the flags.
func (f *pagesFlags) Validate() error {
	for name, d := range map[string]time.Duration{"lease": f.Lease, "hold": f.Hold, "reserve": f.Reserve, "quarantine": f.Quarantine} {
		if d <= 0 {
			return fmt.Errorf("the page service's %s is %v; it must be above 0", name, d)
		}
	}
	if f.BodyLimit <= 0 || f.BatchLimit <= 0 || f.Concurrency <= 0 {
		return fmt.Errorf("the page service's limits must be above 0")
	}
	return nil
}

// validTP bounds --tp: a typing error would keep every key from becoming visible.
func validTP(n int) error {
	if n < 0 || n > pageservice.MaxRanks {
		return fmt.Errorf("--tp %d: want 1 to %d ranks, or 0 for as many as have initialised", n, pageservice.MaxRanks)
	}
	return nil
}

// config returns the configuration of a page service.
func (f *pagesFlags) config(listen []string, world int, drain time.Duration, log *slog.Logger) (daemon.Pages, error) {
	p := daemon.Pages{
		Drain: drain, Log: log,
		Limits: httpserver.Limits{BodyBytes: f.BodyLimit, BatchKeys: f.BatchLimit, Requests: f.Concurrency},
		Index:  pageservice.Options{World: world, Lease: f.Lease, Hold: f.Hold, Reserve: f.Reserve, Quarantine: f.Quarantine},
	}
	for _, s := range listen {
		a, err := httpserver.ParseAddress(s)
		if err != nil {
			return p, err
		}
		p.Listen = append(p.Listen, a)
	}
	var err error
	p.Token, err = readToken(f.TokenFile)
	return p, err
}

// readToken reads the file of a token. Without a file there is no token.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("token: %s is empty; write the token into it", file)
	}
	return token, nil
}

type pagesServeCmd struct {
	Data   string   `required:"" placeholder:"DIR" help:"Data directory, whose .kv3fs contains the page index. Made if missing."`
	Listen []string `default:"127.0.0.1:18000" placeholder:"[NAME=]HOST:PORT" help:"Where to listen, or unix:PATH; several, separated by commas or by giving the flag again. NAME= binds an address to a namespace, so that two models that cannot use the URL prefix /ns/NAME stay apart."`
	TP     int      `name:"tp" placeholder:"N" help:"Ranks of vLLM that a key needs to be complete. Default: all that have initialised."`
	pagesFlags

	LogLevel  slog.Level `default:"INFO" help:"DEBUG, INFO, WARN or ERROR."`
	LogFormat string     `default:"text" enum:"text,json" help:"Form of the log on standard error."`
}

// Validate checks the values of the flags.
func (c *pagesServeCmd) Validate() error {
	return errors.Join(c.pagesFlags.Validate(), validTP(c.TP))
}

// stopLimit bounds how long requests in progress may take when the service stops.
const stopLimit = 10 * time.Second

func (c *pagesServeCmd) Run(ctx context.Context) error {
	tuneCollector()
	p, err := c.config(c.Listen, c.TP, stopLimit, newLogger(c.LogLevel, c.LogFormat))
	if err != nil {
		return err
	}
	return daemon.RunPages(ctx, c.Data, p, func(at []httpserver.Address) {
		for _, a := range at {
			fmt.Fprintf(os.Stderr, "kv3fs: pages of %s at %s, pid %d\n", c.Data, a, os.Getpid())
		}
	})
}
