package policybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

// Trace is a trace of prompts with its blocks numbered from 0 in order of appearance.
type Trace struct {
	Name           string
	DistinctBlocks int
	requests       []request
	blocks         []int32 // of all requests, one after the other
}

type request struct {
	atMs        int64
	first, last int // of blocks, last excluded
}

// Load reads a trace to its end.
func Load(ctx context.Context, r *workload.Reader) (*Trace, error) {
	t := &Trace{Name: r.Name()}
	number := map[uint64]int32{}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		from := len(t.blocks)
		for _, id := range line.Blocks {
			n, ok := number[id]
			if !ok {
				if len(number) == math.MaxInt32 {
					return nil, fmt.Errorf("%s: more than %d different blocks; use a part of the trace", t.Name, math.MaxInt32)
				}
				n = int32(len(number))
				number[id] = n
			}
			t.blocks = append(t.blocks, n)
		}
		t.requests = append(t.requests, request{line.Arrival.Milliseconds(), from, len(t.blocks)})
	}
	t.DistinctBlocks = len(number)
	if len(t.blocks) == 0 {
		return nil, fmt.Errorf("%s: no blocks in %d requests; a trace has one JSON object a line, with timestamp and hash_ids", t.Name, len(t.requests))
	}
	return t, nil
}

// Requests returns the number of requests.
func (t *Trace) Requests() int { return len(t.requests) }

// References returns the number of blocks of all requests together.
func (t *Trace) References() int { return len(t.blocks) }

func (t *Trace) of(r request) []int32 { return t.blocks[r.first:r.last] }
