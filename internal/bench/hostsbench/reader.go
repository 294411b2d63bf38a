package hostsbench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// ReaderOptions are what a reader on a host gets, as JSON.
type ReaderOptions struct {
	Chain, Near, Far string
	Bytes            int64
	Time             time.Duration
	DirectIO         bool
	Host             int
}

// ReaderResult is what it prints.
type ReaderResult struct {
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	FromNext   int64   `json:"bytes_from_next"`
	WrongBytes int     `json:"wrong_bytes"`
}

const (
	readerReady  = "ready"
	readerBlock  = 1 << 20
	readerShards = 4
	readerBatch  = 32
)

// Read is the reader: it stores blocks, says that it is ready, and for each line on in reads
// them for a while and prints what it has read. All that it reads is checked once.
func Read(ctx context.Context, order string, in io.Reader, out io.Writer) (err error) {
	var o ReaderOptions
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		return fmt.Errorf("bench: the reader's order: %w", err)
	}
	n := int(o.Bytes / readerBlock)
	if n < readerBatch {
		return fmt.Errorf("bench: a host needs %d bytes or more to read", readerBatch*readerBlock)
	}
	c := kvstore.Config{
		Namespace: keys.Namespace{Model: "kv3fs bench hosts", Format: fmt.Sprint("host ", o.Host), BlockTokens: 128},
		Layout:    kvstore.Layout{BlockBytes: readerBlock, ShardBytes: readerBlock / readerShards},
		Segment:   &kvstore.SegmentOptions{Dir: o.Near, CapacityBytes: o.Bytes + o.Bytes/2 + 64<<20, SegmentBytes: 16 << 20, DirectIO: o.DirectIO},
	}
	if o.Chain == "Segment|Ds3fs" {
		c.Ds3fs = &kvstore.Ds3fsOptions{Mount: o.Far}
	} else {
		c.Posix = &kvstore.PosixOptions{Dirs: []string{o.Far}}
	}
	s, err := kvstore.Open(o.Chain, c)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r := &reader{s: s, bufs: make([][]byte, readerBatch)}
	for i := range r.bufs {
		r.bufs[i] = make([]byte, readerBlock)
	}
	for i := range n {
		r.keys = append(r.keys, c.Namespace.Key(fmt.Appendf(nil, "block %d", i)))
	}
	for first := 0; first < n; first += readerBatch {
		if err := r.move(ctx, first, true); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	fmt.Fprintln(out, readerReady)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		result, err := r.read(ctx, o.Time)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := json.NewEncoder(out).Encode(result); err != nil {
			return err
		}
	}
	return nil
}

type reader struct {
	s    *kvstore.Store
	keys []kvstore.Key
	bufs [][]byte
}

// batch returns the keys of a batch, which wraps around at the end.
func (r *reader) batch(first int) []kvstore.Key {
	some := make([]kvstore.Key, readerBatch)
	for i := range some {
		some[i] = r.keys[(first+i)%len(r.keys)]
	}
	return some
}

func pattern(key kvstore.Key) workload.Pattern {
	return workload.PatternOf(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]))
}

// move loads a batch, or saves it.
func (r *reader) move(ctx context.Context, first int, save bool) error {
	some := r.batch(first)
	do := r.s.Load
	if save {
		do = r.s.Save
		for i, key := range some {
			pattern(key).Fill(r.bufs[i])
		}
	}
	task, err := do(ctx, r.s.Layout().ByBlock(some, r.bufs))
	if err != nil {
		return err
	}
	return task.Wait(ctx)
}

// read reads for a while, and then checks each block once.
func (r *reader) read(ctx context.Context, d time.Duration) (result ReaderResult, err error) {
	before, err := cpu()
	if err != nil {
		return result, err
	}
	passed := r.s.Stats().PassedBytes
	began := time.Now()
	for first := 0; time.Since(began) < d; first += readerBatch {
		if err := r.move(ctx, first%len(r.keys), false); err != nil {
			return result, err
		}
		result.Bytes += readerBatch * readerBlock
	}
	result.Seconds = time.Since(began).Seconds()
	after, err := cpu()
	if err != nil {
		return result, err
	}
	result.CPUSeconds = (after - before).Seconds()
	for first := 0; first < len(r.keys); first += readerBatch {
		if err := r.move(ctx, first, false); err != nil {
			return result, err
		}
		for i, key := range r.batch(first) {
			wrong, _ := pattern(key).Check(r.bufs[i])
			result.WrongBytes += wrong
		}
	}
	result.FromNext = r.s.Stats().PassedBytes - passed
	return result, nil
}

// cpu returns the processor time of this process.
func cpu() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
