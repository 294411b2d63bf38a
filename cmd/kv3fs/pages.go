package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// pagesCmd runs the page service alone, or operates a running one.
type pagesCmd struct {
	Serve pagesServeCmd `cmd:"" help:"Run the page service alone, without a mount."`
	Relay pagesRelayCmd `cmd:"" help:"Pass connections on to a page service that listens elsewhere, such as vLLM's in a pod."`
	Stat  pagesStatCmd  `cmd:"" help:"Show the state of a running page service."`
	LS    pagesListCmd  `cmd:"" name:"ls" help:"List the keys of a running page service, and their pages."`
	Evict pagesEvictCmd `cmd:"" help:"Remove the least recently used keys now. Engines only see misses."`
	Clear pagesClearCmd `cmd:"" help:"Remove all keys. Running engines are not disturbed and refill the cache."`

	ForgetRank pagesForgetRankCmd `cmd:"" help:"Remove a rank that no longer exists, so that keys are complete without it."`
}

// defaultPagesListen is the only address at which vLLM looks for the service.
const defaultPagesListen = "127.0.0.1:18000"

// pagesFlags are the flags of "pages serve", and of "serve" with the prefix pages-.
type pagesFlags struct {
	Lease      time.Duration `default:"30s" range:"1ms..24h" help:"How long a page is protected from writes after a reader got its location. Must be longer than any engine takes to load a batch."`
	Hold       time.Duration `default:"5s" range:"1ms..24h" help:"How long a key is kept after the service has reported that it exists, so that the engine can still load it."`
	Reserve    time.Duration `default:"60s" range:"1ms..24h" help:"How long a writer has to write and confirm a page before it loses the page."`
	Quarantine time.Duration `default:"10s" range:"1ms..24h" help:"How long a page that lost its key or writer is withheld from other writers."`

	LateWrites lateWrites `default:"auto" range:"auto..24h" placeholder:"TIME" help:"How much longer a page is withheld whose writer gave it up: the file system of a host that was cut off may still send its writes so late. auto: what the data directory's file system and its options say, 0s on one that is this host's alone. docs/hosts.md"`

	Free float64 `default:"0.02" placeholder:"FRACTION" range:"0..0.5" help:"Share of each file's pages that is kept free, so that a service that has just started, or taken over from another host, has pages for new keys at once: it protects all keys for a while, since engines may be using their pages. Rounded down: files of fewer than 50 pages keep none. 0 switches it off."`

	Memory byteSize `placeholder:"SIZE" range:"1MiB..16TiB" help:"Most memory of the page index; garbage may double it. When it is full, unused keys are evicted, least recently used first; a namespace gets no more than it leaves for others. A key of 64 bytes takes about 250. Default: 1/32 of the memory, at least 64 MiB."`

	BodyLimit   byteSize `default:"8MiB" placeholder:"SIZE" range:"1KiB..1GiB" help:"Largest request body; larger ones get 413."`
	BatchLimit  int      `default:"65536" placeholder:"KEYS" range:"1..16777216" help:"Most keys in one request; requests with more get 413."`
	Concurrency int      `default:"512" placeholder:"N" range:"1..65536" help:"Requests executed at once; further ones get 503, and engines retry."`

	BodyMemory  byteSize `default:"128MiB" placeholder:"SIZE" range:"1MiB..1TiB" help:"Most memory for request bodies above 128 KiB. No client (a user of this host, or another address) gets more of this, of connections and of requests at once than it leaves for the others."`
	Connections int      `default:"4096" placeholder:"N" range:"1..1048576" help:"Most open connections. A client that may have no more loses the one that was silent for longest."`

	Host []string `placeholder:"NAME" help:"Further names of this host: without a token, a request that changes something and is for an unknown name gets 403, because a web page may have sent it. Known are addresses, localhost, the host's name and those that the service listens on."`

	Store pagesStore `default:"embedded" placeholder:"STORE" help:"Where the page index is kept. embedded: in a file of this host. etcd://HOST:PORT,HOST:PORT/PREFIX: in etcd, for all hosts that share the data directory: each answers its engines, by asking the host that leads. docs/pages.md"`
	etcdFlags
	StartOver bool `env:"-" yaml:"-" help:"Let the page index of this store be the one in use, whatever it has lost or another one has handed out: all keys are forgotten. For an etcd that was emptied, or restored from an old backup, and for moving the index, from etcd to this host or from one etcd prefix to another. Stop the kv3fs of all hosts, and give it to one, once."`

	PeerListen    string    `placeholder:"HOST:PORT" help:"Where the kv3fs of other hosts reach this one, if the store is etcd. Engines do not use it."`
	PeerAddress   string    `placeholder:"HOST:PORT" help:"By which address other hosts reach it, if not by that of peer-listen, such as that of a pod."`
	PeerTokenFile givenPath `placeholder:"FILE" help:"File with a token that hosts show each other; the same one on all. It is sent as it is: where the network is not trusted, use certificates."`
	PeerCA        givenPath `name:"peer-ca" placeholder:"FILE" help:"Certificate of the authority that has signed the certificates of all hosts, and of nobody else; hosts then show each other certificates, by TLS."`
	PeerCert      givenPath `placeholder:"FILE" help:"Certificate of this host, for its name or address in peer-listen or peer-address, as server and client. It is read again when it is used."`
	PeerKey       givenPath `placeholder:"FILE" help:"Key of that certificate."`

	TokenFile givenPath `placeholder:"FILE" help:"File with a token that engines must send, as a bearer token or as the password in Basic authentication: SGLang's URL may be http://kv3fs:TOKEN@host:18000, and vLLM reads ~/.netrc. /healthz and /readyz need no token."`
}

// config returns the configuration of a page service.
func (f *pagesFlags) config(prefix string, listen []string, world int, drain time.Duration, log *slog.Logger) (daemon.Pages, error) {
	p := daemon.Pages{
		Drain: drain, Version: version(), Log: log, Hosts: f.Host, StartOver: f.StartOver,
		Limits: httpserver.Limits{
			BodyBytes: int64(f.BodyLimit), BatchKeys: f.BatchLimit, Requests: f.Concurrency,
			LargeBytes: int64(f.BodyMemory), Connections: f.Connections,
		},
		Index: pageservice.Options{World: world, Lease: f.Lease, Hold: f.Hold, Reserve: f.Reserve, Quarantine: f.Quarantine, LateWrites: time.Duration(f.LateWrites), Free: f.Free, MemoryBytes: int64(f.Memory)},
	}
	for _, s := range listen {
		a, err := httpserver.ParseAddress(s)
		if err != nil {
			return p, bad(prefix+"listen", "%v", err)
		}
		p.Listen = append(p.Listen, a)
	}
	var err error
	if p.Token, err = readToken(f.TokenFile); err != nil {
		return p, bad(prefix+"token-file", "%v", err)
	}
	p.Cluster, err = f.cluster(prefix)
	return p, err
}

// readToken reads a token from a file. It returns "" if file is "".
func readToken(path givenPath) (string, error) {
	if path == "" {
		return "", nil
	}
	return readSecret("token", path)
}

type pagesServeCmd struct {
	Config configFile `placeholder:"FILE" help:"YAML file whose keys are the names of these flags, e.g. 'data: /var/lib/kv3fs'. The environment and the command line override it."`
	Check  bool       `env:"-" yaml:"-" help:"Check the flags, the environment and the configuration file, print the values in effect as a configuration file, with where each comes from, and exit."`

	Data string `required:"" placeholder:"DIR" help:"Data directory, whose .kv3fs contains the page index. Created if missing."`
	dataFlags
	Listen []string `default:"127.0.0.1:18000" placeholder:"[NAME=]HOST:PORT" help:"Address to listen on: HOST:PORT or unix:PATH. Give several separated by commas, or repeat the flag. NAME= binds an address to a namespace, which separates models whose engines cannot use the URL prefix /ns/NAME."`
	TP     int      `name:"tp" placeholder:"N" range:"1..4096" help:"Number of vLLM ranks that must store a key before the page service reports it. Default: all that have initialised."`

	Identity identityName `placeholder:"NAME" help:"Under which name this host keeps its page index, as of \"serve\"."`
	Shared   sharedFlag   `default:"auto" enum:"auto,on,off" help:"Whether other hosts use the data directory, as of \"serve\": then only one index hands out its pages."`
	pagesFlags

	Trace traceFlags `embed:"" prefix:"trace-"`
	Log   logFlags   `embed:"" prefix:"log-"`
}

// stopLimit bounds how long requests in progress may take when the service stops.
const stopLimit = 10 * time.Second

func (c *pagesServeCmd) Run(ctx serverContext, values *flagValues, kctx *kong.Context, out io.Writer, tell *teller) error {
	if c.Check {
		if _, err := c.config("", c.Listen, c.TP, stopLimit, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		return values.write(out, kctx.Selected())
	}
	lines := c.Log.open(tell, everything)
	p, err := c.config("", c.Listen, c.TP, stopLimit, lines.Logger())
	if err != nil {
		return err
	}
	p.Audit, p.Descriptors = lines.Audit(), tell.inherited
	if p.Tracing, err = c.Trace.config(); err != nil {
		return err
	}
	if err := c.check(c.Data); err != nil {
		return err
	}
	tuneCollector()
	return daemon.RunPages(ctx, c.Data, string(c.Identity), c.Shared.sharing(), p, func(at []httpserver.Address) {
		for _, a := range at {
			lines.Always().Info("serving pages", "data", c.Data, "address", a.String(), "pid", os.Getpid())
		}
	})
}
