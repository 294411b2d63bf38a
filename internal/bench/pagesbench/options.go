package pagesbench

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	// URL is a service that runs, http://HOST:PORT or with a namespace's path
	// behind it, which is filled with keys. Without it Binary is started as one, in
	// a directory of its own below Scratch.
	URL     string
	Scratch string // default: the system's directory for temporary files
	Binary  string

	// Python runs the reference; "" leaves it out.
	Python string

	Protocols []string      // of vllm and sglang; default both
	Clients   int           // default 8
	Batch     int           // keys of a request; default 512
	Pages     int           // of the rank, and keys of the memory and restart figures; default 1<<20
	Runs      int           // of each contender; default 5
	RunTime   time.Duration // default 2 s

	// Notice gets lines for a person, Done is called after every run.
	Notice func(line string)
	Done   func(runs, of int)
}

func (o *Options) fillDefaults() error {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&o.Clients, 8)
	set(&o.Batch, 512)
	set(&o.Pages, 1<<20)
	set(&o.Runs, 5)
	if o.RunTime == 0 {
		o.RunTime = 2 * time.Second
	}
	if len(o.Protocols) == 0 {
		o.Protocols = []string{"vllm", "sglang"}
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if o.Done == nil {
		o.Done = func(int, int) {}
	}
	switch {
	case o.URL == "" && o.Binary == "":
		return errors.New("bench: no kv3fs to start a page service from")
	case o.Clients < 1 || o.Clients > 1024:
		return fmt.Errorf("bench: %d clients; choose 1 to 1024", o.Clients)
	case o.Batch < 1 || o.Batch > 4096:
		return fmt.Errorf("bench: batches of %d keys; choose 1 to 4096", o.Batch)
	case o.Pages < 16*o.Batch*o.Clients:
		return fmt.Errorf("bench: %d pages are too few; choose at least %d, sixteen batches for each client", o.Pages, 16*o.Batch*o.Clients)
	case o.Runs < 1 || o.RunTime < time.Millisecond:
		return fmt.Errorf("bench: %d runs of %v; choose at least one of a millisecond", o.Runs, o.RunTime)
	}
	for _, p := range o.Protocols {
		if !slices.Contains([]string{"vllm", "sglang"}, p) {
			return fmt.Errorf("bench: protocol %q is unknown: use vllm or sglang", p)
		}
	}
	_, err := o.urlTarget()
	return err
}

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
