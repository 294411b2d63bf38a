package enginebench

import (
	"math"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// planned is a request whose time is calculated, without a store.
type planned struct {
	arrival  time.Duration // not used if another request must end first
	prompt   int
	together int
	output   int
	cached   int           // tokens that are loaded
	load     time.Duration // for which the link to the store is busy
	keys     []kvstore.Key // of the prompt's blocks, for the engine's memory
}

// calculation calculates the times of an engine whose store does what it should.
type calculation struct {
	subject *Subject
	gpus    gpus          // as they are before the first request
	atOnce  int           // so many requests at once; the others come when one ends. 0: each at its time
	latency time.Duration // of a load
	whole   bool          // compute begins when all is loaded
	memory  *engineMemory // nil: the requests say what is cached
}

// run returns the jobs of the requests, with their times, and when each arrived.
func (c calculation) run(requests []planned) (jobs []*job, arrivals []time.Duration) {
	const never = math.MaxInt64
	g := c.gpus
	requestOf := map[*job]planned{}
	for i, r := range requests {
		at := r.arrival
		if c.atOnce > 0 && i >= c.atOnce {
			at = never
		}
		arrivals = append(arrivals, at)
	}
	var (
		ahead         bool          // a request has been looked up and has not begun
		since         time.Duration // when the one before it began
		link          time.Duration // when the link to the store is free
		now           time.Duration
		came, missing = min(c.atOnce, len(requests)), len(requests)
	)
	look := func(now time.Duration) {
		i := len(jobs)
		if ahead || i == len(requests) || arrivals[i] > now {
			return
		}
		ahead = true
		r := requests[i]
		j := &job{prompt: r.prompt, together: r.together, output: r.output, ready: max(arrivals[i], since)}
		j.looked = j.ready
		j.cache(r.cached)
		if c.memory != nil {
			j.inMemory = c.memory.use(r.keys)
			j.cache(j.inMemory * c.subject.blockTokens)
		}
		if r.load > 0 {
			begin := max(j.ready, link)
			link = begin + r.load
			layers := time.Duration(g.layers)
			for layer := range layers {
				at := begin + c.latency + r.load*(layer+1)/layers
				if c.whole {
					at = link + c.latency
				}
				j.landed = append(j.landed, at)
			}
			j.ready = j.landed[0]
		}
		requestOf[j] = r
		jobs, g.prefills = append(jobs, j), append(g.prefills, j)
	}
	for missing > 0 {
		look(now)
		prompt := g.next(func(j *job) bool { return j.ready <= now })
		switch {
		case prompt != nil && !prompt.begun:
			ahead, since = false, now
			look(now)
		case prompt == nil && len(g.decodes) == 0: // until the next arrival or load
			next := time.Duration(never)
			if i := len(jobs); !ahead && i < len(requests) {
				next = arrivals[i]
			}
			if len(g.prefills) > 0 {
				next = min(next, g.prefills[0].ready)
			}
			now = max(now, next)
			continue
		}
		g.free = max(g.free, now)
		first, last := g.run(prompt)
		look(g.free) // one that came during the pass
		now = g.free
		if first != nil && c.memory != nil {
			c.memory.computed(requestOf[first].keys, first.inMemory)
		}
		for _, j := range last {
			missing--
			if c.memory != nil {
				c.memory.release(requestOf[j].keys)
			}
			if c.atOnce > 0 && came < len(requests) {
				arrivals[came] = now
				came++
			}
		}
	}
	return jobs, arrivals
}
