package blockfiles

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// claim decides which shards of a block a batch writes. That looks for the block and
// creates its temporary file, so it may hang. A claim that hangs is abandoned, and
// shards that it claims too late are released again.
type claim struct {
	b      *moving
	key    kv.Key
	number int           // among the claims of the batch
	shards []int         // places in the batch
	ready  chan struct{} // closed when the claim is made or abandoned

	// Set before ready is closed, and not read when the claim is abandoned.
	claimed map[int]*assembly.Block[*temporary] // by place in the batch
	done    map[int]error                       // shards that need not be written, and why
	later   []int                               // shards that another writer has

	created bool // the file that takes the claim's place; of the goroutine that makes the claim

	until time.Time // how long to wait for other writers

	mu    sync.Mutex
	state claimState
	early []int               // of later: those that others released before the claim was made
	stops map[int]func() bool // see expectLater
}

type claimState int

const (
	open claimState = iota
	made
	abandoned
)

func (b *moving) claim(key kv.Key) *claim {
	return &claim{
		b: b, key: key, ready: make(chan struct{}),
		claimed: map[int]*assembly.Block[*temporary]{}, done: map[int]error{}, stops: map[int]func() bool{},
	}
}

// mine returns the block that a shard of the batch is to be written into, or nil.
func (c *claim) mine(i int) *assembly.Block[*temporary] {
	if c.gaveUp() {
		return nil
	}
	return c.claimed[i]
}

func (c *claim) gaveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == abandoned
}

// begin makes the claim, settles the shards that need not be written, and calls then. It
// takes over a place for a file from the caller.
func (c *claim) begin(then func()) {
	c.b.s.opens.Go(workerpool.Job{
		Context: c.b.Context(),
		Bulk:    bulkCall,
		Run:     c.make,
		Done: func(err error) {
			if err != workerpool.ErrOverdue {
				c.leave()
			}
			c.mu.Lock()
			if err != nil {
				c.state = abandoned
			} else {
				c.state = made
				c.expectLater()
			}
			early := c.early
			c.mu.Unlock()
			close(c.ready)
			if err != nil {
				c.b.settleAll(c.shards, err)
			} else {
				for i, err := range c.done {
					c.b.settle(i, err)
				}
				for _, i := range early {
					c.retry(i)
				}
			}
			then()
		},
		Late: func() {
			c.leave()
			for i, block := range c.claimed {
				c.b.s.unclaim(block, c.b.Shard(i).Index)
			}
		},
	})
}

// leave gives back the claim's place, if no file has taken it.
func (c *claim) leave() {
	if !c.created {
		c.b.s.drafts.leave()
	}
}

// fail settles the shards of a claim that is not begun.
func (c *claim) fail(err error) {
	c.mu.Lock()
	c.state = abandoned
	c.mu.Unlock()
	close(c.ready)
	c.b.settleAll(c.shards, err)
}

func (c *claim) make() {
	s := c.b.s
	there, err := s.has(c.key, time.Now())
	for _, i := range c.shards {
		if there || err != nil {
			c.done[i] = err
			continue
		}
		block, verdict, failed := c.enter(i, c.b.Shard(i))
		switch {
		case verdict == assembly.Compare: // it could not be copied
			c.done[i] = failed
		case failed != nil:
			if block != nil {
				s.giveUp(block, func() {})
			}
			err = failed
			c.done[i] = err
		case verdict == assembly.Write:
			c.claimed[i] = block
		case verdict == assembly.Have:
			c.done[i] = nil
		default:
			c.later = append(c.later, i)
		}
	}
}

// enter asks to write a shard. One in a device's memory is copied first if it has to be compared
// with what another writer has brought.
func (c *claim) enter(i int, shard kv.Shard) (*assembly.Block[*temporary], assembly.Verdict, error) {
	s := c.b.s
	block, verdict, err := s.unfinished.Enter(c.b.writer, shard,
		func() (*temporary, error) {
			if c.created { // its place went to a file that is given up by now
				return nil, errSlowWriter
			}
			t, err := s.create(c.key)
			c.created = err == nil
			return t, err
		},
		func() { c.again(i) })
	if verdict != assembly.Compare {
		return block, verdict, err
	}
	if shard.Buf, err = s.o.DeviceBytes(*shard.Device, s.o.Layout.ShardBytes); err != nil {
		return nil, verdict, err
	}
	return c.enter(i, shard)
}

// again is called when another writer of a shard has written it or given it up.
func (c *claim) again(i int) {
	c.mu.Lock()
	state := c.state
	if state == open {
		c.early = append(c.early, i)
	}
	c.mu.Unlock()
	if state == made {
		c.retry(i)
	}
}

// errSlowWriter says that other writers of a block have not ended in time: one hangs, or
// many have failed one after the other.
var errSlowWriter = fmt.Errorf("%w: another writer of the block has not ended", kv.ErrTimeout)

// expectLater makes sure that shards that other writers have are settled in any case: when
// the batch is cancelled, and after the timeout, counted from the first time that they
// had to wait. mu is held.
func (c *claim) expectLater() {
	if c.until.IsZero() {
		c.until = time.Now().Add(c.b.s.o.Timeout)
	}
	for _, i := range c.later {
		bound, cancel := context.WithDeadlineCause(c.b.Context(), c.until, errSlowWriter)
		stop := context.AfterFunc(bound, func() {
			cancel()
			err := context.Cause(bound)
			if err != errSlowWriter {
				err = bound.Err() // the context's own error, whatever its cause
			}
			c.b.settle(i, err)
		})
		c.stops[i] = func() bool {
			defer cancel()
			return stop()
		}
	}
}

// retry claims one shard once more, unless it was settled meanwhile.
func (c *claim) retry(i int) {
	if !c.stops[i]() {
		return
	}
	b := c.b
	one := b.claim(c.key)
	one.shards, one.until = []int{i}, c.until
	b.s.group.Go(func() {
		if err := b.s.waitForDraft(b.Context()); err != nil {
			one.fail(err)
			return
		}
		one.begin(func() {
			if block := one.mine(i); block != nil {
				b.s.group.Go(func() {
					q := batch.Queue{Engine: b.s.engine, Context: b.Context()}
					b.add(&q, b.Run(i), block)
					q.Flush()
				})
			}
		})
	})
}
