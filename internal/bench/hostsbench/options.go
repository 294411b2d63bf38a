package hostsbench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
)

// Host is where a host's processes run and keep their blocks.
type Host struct {
	Near    string   // a directory on its own disk
	Far     string   // where it sees the directory that all share, or its 3FS mount
	Command []string // before every command that is run there; none: on this machine
}

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	Binary string // a kv3fs
	Hosts  []Host // two or more

	Parts []string // of Parts(); default all but page services, and these where URLs are given

	Store  string   // a chain with Segment in front of another store; default Cache|Segment|Posix
	Orders []string // of the queries; default all of enginebench's
	Engine []string // further arguments of "bench engine shared-prefix"
	Seed   uint64   // default random

	ReadTime  time.Duration // of the hosts' reads from their own disks; default 3 s
	ReadBytes int64         // that each has there; default 256 MiB
	DirectIO  bool          // they bypass the page cache

	RingScratch string        // where a daemon with --shared on has its data; default the system's directory for temporary files
	RingTime    time.Duration // of each of its runs; default 500 ms

	PagesURLs []string // of page services that share an index, the leader's first
	Failover  []string // a command that ends the leader
	PagesTime time.Duration

	// Notice gets lines for the user.
	Notice func(line string)
}

// Parts of the benchmark.
const (
	PartEngine = "engine" // the time to the first token
	PartReads  = "reads"  // from the hosts' own disks
	PartRings  = "rings"  // in shared mode
	PartPages  = "pages"  // page services
)

// Parts returns the names of the parts.
func Parts() []string { return []string{PartEngine, PartReads, PartRings, PartPages} }

func (o *Options) has(part string) bool { return slices.Contains(o.Parts, part) }

// Check reports options that cannot be run with.
func (o Options) Check() error { return o.fillDefaults() }

func (o *Options) fillDefaults() error {
	if o.Store == "" {
		o.Store = "Cache|Segment|Posix"
	}
	if len(o.Orders) == 0 {
		o.Orders = []string{enginebench.Grouped, enginebench.Shuffled, enginebench.RoundRobin}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1<<62) + 1
	}
	if o.ReadTime == 0 {
		o.ReadTime = 3 * time.Second
	}
	if o.ReadBytes == 0 {
		o.ReadBytes = 256 << 20
	}
	if o.RingTime == 0 {
		o.RingTime = 500 * time.Millisecond
	}
	if o.PagesTime == 0 {
		o.PagesTime = time.Second
	}
	if len(o.Parts) == 0 {
		if o.Parts = Parts(); len(o.PagesURLs) == 0 {
			o.Parts = o.Parts[:3]
		}
	}
	for _, part := range o.Parts {
		if !slices.Contains(Parts(), part) {
			return fmt.Errorf("bench: part %.40q; there are %s", part, strings.Join(Parts(), ", "))
		}
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	switch {
	case o.Binary == "":
		return errors.New("bench: no kv3fs to run on the hosts")
	case len(o.Hosts) < 2:
		return fmt.Errorf("bench: %d hosts; choose two or more: one fills the store, another has just joined", len(o.Hosts))
	case !strings.Contains(o.Store, "Segment|"):
		return fmt.Errorf("bench: the chain %s has no Segment in front of another store; use Cache|Segment|Posix or Cache|Segment|Ds3fs", o.Store)
	case len(o.PagesURLs) == 1:
		return errors.New("bench: one page service; give the URLs of two or more, the leader's first")
	case (len(o.Failover) > 0 || o.has(PartPages)) && len(o.PagesURLs) == 0:
		return errors.New("bench: page services are to be measured, or their leader ended, and none is named; give their URLs, the leader's first")
	}
	for _, order := range o.Orders {
		if !slices.Contains(enginebench.Orders(), order) {
			return fmt.Errorf("bench: order %.40q; there are %s", order, strings.Join(enginebench.Orders(), ", "))
		}
	}
	near := map[string]bool{}
	for i, h := range o.Hosts {
		key := strings.Join(h.Command, " ") + "\x00" + h.Near
		switch {
		case h.Near == "" || h.Far == "":
			return fmt.Errorf("bench: host %d has no directory of its own, or none that all share", i+1)
		case near[key]:
			return fmt.Errorf("bench: two hosts have %s; each needs a directory of its own", h.Near)
		}
		near[key] = true
	}
	return nil
}

// last returns the last store of the chain.
func (o *Options) last() string { return o.Store[strings.LastIndex(o.Store, "|")+1:] }
