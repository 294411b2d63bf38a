package storebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
)

const (
	hitsFrom   = "kv3fs bench: hits begin"
	hitsTo     = "kv3fs bench: hits end"
	tracedHits = 1000
	traceLimit = 2 * time.Minute
	stopLimit  = 5 * time.Second
)

// TracedHits opens a segment store in dir and hits it, for a tracer. Between two lines on
// out it does nothing but hits, each a lookup and a load.
func TracedHits(ctx context.Context, dir string, out io.Writer) (err error) {
	l := kvstore.Layout{BlockBytes: 64 << 10, ShardBytes: 64 << 10}
	s, err := kvstore.Open("Segment", kvstore.Config{
		Namespace: namespace(), Layout: l, Segment: &kvstore.SegmentOptions{Dir: dir, CapacityBytes: 64 << 20},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	set := blocksOf(0, 100, l)
	bufs := make([][]byte, len(set.keys))
	for i := range bufs {
		bufs[i] = make([]byte, l.BlockBytes)
	}
	set.fill(bufs)
	if err := set.saveInto(ctx, s, bufs); err != nil {
		return err
	}
	hits := func(n int) error {
		found := make([]bool, 1)
		for i := range n {
			at := i % len(set.keys)
			one := &blocks{layout: l, keys: set.keys[at : at+1]}
			if err := s.Lookup(ctx, one.keys, found); err != nil || !found[0] {
				return fmt.Errorf("block %s is not there: %w", one.keys[0], err)
			}
			if err := one.loadFrom(ctx, s, bufs[at:at+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := hits(len(set.keys)); err != nil {
		return err
	}
	fmt.Fprintln(out, hitsFrom)
	err = hits(tracedHits)
	fmt.Fprintln(out, hitsTo)
	return err
}

// Calls counts the system calls of hits.
type Calls struct {
	Hits  int            `json:"hits"`
	Reads int            `json:"reads"`
	Names map[string]int `json:"calls_on_names_and_inodes"` // open, stat, rename and their like
}

// PerHit returns how many calls on names and inodes a hit makes.
func (c *Calls) PerHit() float64 {
	n := 0
	for _, k := range c.Names {
		n += k
	}
	return float64(n) / float64(c.Hits)
}

// countCalls runs TracedHits in binary under strace. An error says why that is not
// possible.
func countCalls(ctx context.Context, binary, scratch string) (_ *Calls, err error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, errNoStrace
	}
	dir, err := os.MkdirTemp(scratch, "kv3fs-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	trace := filepath.Join(dir, "trace")
	child, err := measure.StartChild(strace, "-f", "-qq", "-o", trace, "-e", "trace=%file,%desc",
		binary, "bench", "store", "--traced-hits", filepath.Join(dir, "segments"))
	if err != nil {
		return nil, err
	}
	select {
	case <-child.Ended():
	case <-ctx.Done():
	}
	// When strace is told to end, it ends the traced process, too.
	if err := child.Stop(stopLimit); err != nil {
		return nil, fmt.Errorf("strace: %w", cmp.Or(ctx.Err(), err))
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		return nil, err
	}
	return parseCalls(string(raw))
}

var errNoStrace = errors.New("strace is not installed")

// parseCalls counts the calls between the lines that TracedHits wrote.
func parseCalls(trace string) (*Calls, error) {
	call := regexp.MustCompile(`^\d+ +([a-z0-9_]+)\(`)
	c := &Calls{Hits: tracedHits, Names: map[string]int{}}
	from, to := strings.Index(trace, hitsFrom), strings.Index(trace, hitsTo)
	if from < 0 || to < from {
		return nil, errors.New("strace: the trace has no beginning or no end of the hits")
	}
	for line := range strings.Lines(trace[from:to]) {
		m := call.FindStringSubmatch(line)
		switch {
		case m == nil:
		case strings.HasPrefix(m[1], "pread"):
			c.Reads++
		case onNames(m[1]):
			c.Names[m[1]]++
		}
	}
	if c.Reads < c.Hits {
		return nil, fmt.Errorf("strace: %d reads in %d hits: not all of it was seen", c.Reads, c.Hits)
	}
	return c, nil
}

// onNames reports whether a call queries a file system for a name or an inode.
func onNames(call string) bool {
	for _, family := range []string{"open", "creat", "stat", "access", "rename", "link", "mkdir", "rmdir", "getdents", "chmod", "chown", "utime", "truncate", "xattr", "close"} {
		if strings.Contains(call, family) {
			return true
		}
	}
	return false
}
