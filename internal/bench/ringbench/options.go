package ringbench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	// Data and Mount are those of a running daemon. If both are empty, Binary is
	// started as a daemon, in a new directory below Scratch.
	Data, Mount string
	Scratch     string // default: the system's directory for temporary files
	Binary      string // a kv3fs; required if a daemon is to be started

	// IO is the daemon's --io: buffered, direct or auto (the default). direct
	// makes the mount and the plain loop use O_DIRECT as well.
	IO string

	SizesBytes []int64       // default 4 KiB, 128 KiB, 1 MiB, 4 MiB
	Depth      int           // of each ring; default DefaultDepth
	Rings      int           // default 1
	FileBytes  int64         // of each of two files per ring; default 256 MiB
	Runs       int           // of each contender; default 5
	RunTime    time.Duration // of each run; default 500 ms
	NoFio      bool
	// Checksums adds the rings of a second daemon, which keeps checksums.
	Checksums bool
	// Scrape adds the rings while the daemon's metrics are read once a second and a dashboard is open. Only with a daemon that Run starts.
	Scrape bool
	// Restart adds the rings of a second daemon, which keeps what its successor needs to go on with them. The first one does not.
	Restart bool

	// Notice gets lines for a person. Done is called after every run.
	Notice func(line string)
	Done   func(runs, of int)
}

// smallBytes is the size from which a request is worth a thread of its own in the plain
// loop, and from which fewer in flight are enough.
const smallBytes = 128 << 10

// DefaultDepth returns a ring's depth for requests of this size.
func DefaultDepth(sizeBytes int64) int {
	if sizeBytes < smallBytes {
		return 64
	}
	return 32
}

// PlainThreads returns the number of threads that the plain loop and the mount get when
// they are compared with so many rings of this depth. Small requests are bound by their cost and not
// by waiting: for them it is the number of rings. For large ones it is the number of
// requests in flight, up to 64.
func PlainThreads(sizeBytes int64, rings, depth int) int {
	if sizeBytes < smallBytes {
		return rings
	}
	return min(rings*depth, 64)
}

// chunkBytes is the unit of content and of sizes.
const chunkBytes = 4096

// Check reports options that cannot be run with.
func (o Options) Check() error { return o.fillDefaults() }

func (o *Options) fillDefaults() error {
	o.Rings = cmp.Or(o.Rings, 1)
	o.Runs = cmp.Or(o.Runs, 5)
	o.RunTime = cmp.Or(o.RunTime, 500*time.Millisecond)
	o.FileBytes = cmp.Or(o.FileBytes, 256<<20)
	if len(o.SizesBytes) == 0 {
		o.SizesBytes = []int64{4 << 10, 128 << 10, 1 << 20, 4 << 20}
	}
	o.IO = cmp.Or(o.IO, "auto")
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	switch {
	case (o.Data == "") != (o.Mount == ""):
		return errors.New("bench: give both --data and --mount of a running daemon, or neither to have one started")
	case o.Data != "" && o.Checksums:
		return errors.New("bench: --checksums compares two daemons that the benchmark starts: leave out --data and --mount")
	case o.Data != "" && o.Scrape:
		return errors.New("bench: --scrape reads the metrics of a daemon that the benchmark starts: leave out --data and --mount")
	case o.Data != "" && o.Restart:
		return errors.New("bench: --restart-state compares two daemons that the benchmark starts: leave out --data and --mount")
	case o.Data == "" && o.Binary == "":
		return errors.New("bench: no kv3fs to start a daemon from")
	case !slices.Contains([]string{"auto", "buffered", "direct"}, o.IO):
		return fmt.Errorf("bench: I/O mode %q is unknown: use auto, buffered or direct", o.IO)
	case o.Rings < 1 || o.Rings > 256:
		return fmt.Errorf("bench: %d rings; choose 1 to 256", o.Rings)
	case o.Depth < 0 || o.Depth > 4096:
		return fmt.Errorf("bench: a depth of %d; choose 1 to 4096", o.Depth)
	}
	for _, size := range o.SizesBytes {
		if size < chunkBytes || size%chunkBytes != 0 {
			return fmt.Errorf("bench: a size of %d bytes; sizes are multiples of 4 KiB", size)
		}
		// Every request in flight has its own part of the file. A file never has more
		// threads than its ring has entries.
		if need := size * int64(o.depth(size)); o.FileBytes < need {
			return fmt.Errorf("bench: files of %s are too small for %d requests of %s in flight; choose --file-bytes %s, a smaller --depth or smaller --sizes",
				measure.SizeText(o.FileBytes), o.depth(size), measure.SizeText(size), measure.SizeText(need))
		}
	}
	return o.rounds().Check()
}

func (o *Options) depth(sizeBytes int64) int {
	if o.Depth != 0 {
		return o.Depth
	}
	return DefaultDepth(sizeBytes)
}

func (o *Options) rounds() measure.Rounds { return measure.Rounds{Runs: o.Runs, RunTime: o.RunTime} }

// testCase is one row of the table.
type testCase struct {
	write     bool
	sizeBytes int64
	depth     int // of each ring
	rings     int
	threads   int
}

func (o *Options) cases() (cases []testCase) {
	for _, size := range o.SizesBytes {
		for _, write := range []bool{false, true} {
			depth := o.depth(size)
			cases = append(cases, testCase{write, size, depth, o.Rings, PlainThreads(size, o.Rings, depth)})
		}
	}
	return cases
}

func (c testCase) op() string {
	if c.write {
		return "write"
	}
	return "read"
}
