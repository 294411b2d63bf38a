package pagesoak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	pageBytes = 64 << 10
	ranks     = 2
)

// times are those of the service. They are short, so that many pass in a run.
type times struct{ lease, reserve, quarantine time.Duration }

func shortTimes() times {
	return times{lease: 3 * time.Second, reserve: 6 * time.Second, quarantine: 2 * time.Second}
}

// world is one set of page files and the engines that share it.
type world struct {
	name     string
	protocol protocol
	times    times
	numPages int
	numKeys  int
	digits   int // of a key
	newRings func() *rings
	tally    *tally
}

// tally counts the events of a run.
type tally struct {
	stored, abandoned, slow, released, refused       atomic.Int64 // pages
	hits, misses, tooLate                            atomic.Int64 // pages
	retries, gaveUp, daemonGone, registered, stalled atomic.Int64

	mu       sync.Mutex
	wrong    []string               // wrong pages
	failures []string               // all other errors
	keys     [ranks]map[string]bool // all that were ever confirmed
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("pages stored %d (of %d and %d keys), abandoned %d, slow %d, released %d, refused %d; read %d, missed %d, too late %d; requests retried %d, given up %d; daemon gone %d, rings set up %d, stalls %d; wrong pages %d",
		c.stored.Load(), len(c.keys[0]), len(c.keys[1]), c.abandoned.Load(), c.slow.Load(), c.released.Load(), c.refused.Load(),
		c.hits.Load(), c.misses.Load(), c.tooLate.Load(), c.retries.Load(), c.gaveUp.Load(),
		c.daemonGone.Load(), c.registered.Load(), c.stalled.Load(), len(c.wrong))
}

func (c *tally) wrongPage(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *tally) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err.Error())
}

func (c *tally) confirmed(rank int, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys[rank] == nil {
		c.keys[rank] = map[string]bool{}
	}
	c.keys[rank][key] = true
}

// report fails the test if anything was wrong.
func (c *tally) report(t *testing.T, name string) {
	t.Helper()
	t.Logf("%s: %v", name, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, list := range [][]string{c.wrong, c.failures} {
		for i, text := range list {
			if i == 10 {
				t.Errorf("%s: and %d more", name, len(list)-i)
				break
			}
			t.Errorf("%s: %s", name, text)
		}
	}
}

// key returns the n-th key, which is as long as the keys of the engine.
func (w *world) key(n int) string {
	text := fmt.Sprintf("%s %d", w.name, n)
	var key string
	for i := 0; len(key) < w.digits; i++ {
		key += fmt.Sprintf("%016x", contentSeed(text, i))
	}
	return key[:w.digits]
}

// start starts engines that run until the context ends, and adds them to wg.
func (w *world) start(ctx context.Context, wg *sync.WaitGroup, seed uint64, writers, readers int) {
	for i := range writers + readers {
		rng := rand.New(rand.NewPCG(seed, contentSeed(w.name, i)))
		e := &engine{world: w, rng: rng, began: time.Now(), rings: w.newRings(), popular: rand.NewZipf(rng, 1.3, 8, uint64(w.numKeys-1))}
		act := e.readSome
		if i < writers {
			act = e.writeSome
		}
		wg.Go(func() {
			defer e.rings.close()
			for ctx.Err() == nil {
				if err := act(ctx); err != nil && ctx.Err() == nil {
					w.tally.fail(err)
					return
				}
			}
		})
	}
}

// engine is one worker of an inference engine.
type engine struct {
	*world
	rng     *rand.Rand
	popular *rand.Zipf
	began   time.Time
	rings   *rings
}

// drift is how long a key stays the most popular one. So there are always keys that no
// engine uses any more.
const drift = 100 * time.Millisecond

// batch draws distinct keys, some more often than others.
func (e *engine) batch() []string {
	top := uint64(time.Since(e.began) / drift)
	var keys []string
	drawn := map[uint64]bool{}
	for range 1 + e.rng.IntN(batchPages) {
		if n := (top + e.popular.Uint64()) % uint64(e.numKeys); !drawn[n] {
			drawn[n] = true
			keys = append(keys, e.key(int(n)))
		}
	}
	return keys
}

// failed reports whether anything was wrong so far.
func (c *tally) failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.wrong)+len(c.failures) > 0
}

// numKeys returns how many keys were ever confirmed, on all ranks.
func (c *tally) numKeys() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, keys := range c.keys {
		n += len(keys)
	}
	return n
}

func (c *tally) wrongPages() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.wrong)
}
