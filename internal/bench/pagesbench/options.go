package pagesbench

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	// URL is a running service, http://HOST:PORT or with the path of a namespace, which the
	// benchmark fills with keys. Without it, the benchmark starts Binary as a service, in a
	// directory of its own below Scratch.
	URL     string
	Scratch string // default: the system's directory for temporary files
	Binary  string

	// Python is the interpreter for the reference; "": no reference.
	Python string

	Protocols []string      // of vllm and sglang; default both
	Clients   int           // default 8
	Batch     int           // keys of a request; default 512
	Pages     int           // of the rank, and keys of the memory and restart figures; default 1<<20
	Runs      int           // of each contender; default 5
	RunTime   time.Duration // default 2 s

	// Notice gets lines for the user; Done is called after every run.
	Notice func(line string)
	Done   func(runs, of int)
}

// Check reports options that cannot be run with.
func (o Options) Check() error { return o.fillDefaults() }

func (o *Options) fillDefaults() error {
	o.Clients = cmp.Or(o.Clients, 8)
	o.Batch = cmp.Or(o.Batch, 512)
	o.Pages = cmp.Or(o.Pages, 1<<20)
	o.Runs = cmp.Or(o.Runs, 5)
	o.RunTime = cmp.Or(o.RunTime, 2*time.Second)
	if len(o.Protocols) == 0 {
		o.Protocols = []string{"vllm", "sglang"}
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	switch {
	case o.URL == "" && o.Binary == "":
		return errors.New("bench: there is no kv3fs binary to start a page service from; set Binary or URL")
	case o.Clients < 1 || o.Clients > 1024:
		return fmt.Errorf("bench: %d clients; choose 1 to 1024", o.Clients)
	case o.Batch < 1 || o.Batch > 4096:
		return fmt.Errorf("bench: batches of %d keys; choose 1 to 4096", o.Batch)
	case o.Pages < 16*o.Batch*o.Clients:
		return fmt.Errorf("bench: %d pages are too few; choose at least %d, sixteen batches for each client", o.Pages, 16*o.Batch*o.Clients)
	}
	for _, p := range o.Protocols {
		if !slices.Contains([]string{"vllm", "sglang"}, p) {
			return fmt.Errorf("bench: protocol %q is unknown: use vllm or sglang", p)
		}
	}
	if err := o.rounds().Check(); err != nil {
		return err
	}
	_, err := o.urlTarget()
	return err
}

func (o *Options) rounds() measure.Rounds { return measure.Rounds{Runs: o.Runs, RunTime: o.RunTime} }

func (o *Options) urlTarget() (target, error) {
	if o.URL == "" {
		return target{}, nil
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" || u.Port() == "" || u.RawQuery != "" {
		return target{}, fmt.Errorf("bench: %q is not http://HOST:PORT or http://HOST:PORT/ns/NAME", o.URL)
	}
	return target{u.Host, strings.TrimRight(u.Path, "/")}, nil
}

func (o *Options) dialects() (all []dialect) {
	for _, name := range o.Protocols {
		d := vllmDialect()
		if name == "sglang" {
			d = sglangDialect()
		}
		all = append(all, d)
	}
	return all
}
