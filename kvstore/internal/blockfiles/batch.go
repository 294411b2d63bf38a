package blockfiles

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// moving is a batch that is under way.
type moving struct {
	*batch.Batch
	s      *Store
	writer *assembly.Writer // of a Save
}

// begin admits a batch. The batch has its own copy of the shards: the caller may change
// its slice when all of them are settled, and the store may still look at it then.
func (s *Store) begin(ctx context.Context, m batch.Method, shards []kv.Shard) (*moving, error) {
	b, err := s.group.Begin(ctx, m, slices.Clone(shards), s.limits[m])
	if err != nil {
		return nil, err
	}
	return &moving{Batch: b, s: s}, nil
}

// settle settles a shard.
func (b *moving) settle(i int, err error) { b.Settle(i, b.s.explain(err)) }

func (b *moving) settleAll(shards []int, err error) { b.SettleAll(shards, b.s.explain(err)) }

// explain adds to errors of the pools what to do about them.
func (s *Store) explain(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: raise the limit (ulimit -n), or have fewer blocks under way", err)
	case errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: raise the host's limit (sysctl fs.file-max)", err)
	case err == kv.ErrTimeout:
		return fmt.Errorf("%w: earlier calls to %s have not returned", err, strings.Join(s.o.Roots, ", "))
	}
	return err
}

// runFrom returns the longest run that begins with a shard of the batch and of which all
// may take part.
func (b *moving) runFrom(first int, may func(i int) bool) batch.Run {
	r := b.Run(first)
	for may(r.First+r.N) && b.Extend(&r, math.MaxInt) {
	}
	return r
}
