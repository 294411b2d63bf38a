package httpserver

import (
	"context"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// call is one request that is being executed, with the answer so far.
type call struct {
	request
	server    *Server
	index     *index.Index
	ctx       context.Context // the request's: a call lives no longer
	namespace string
	pathRank  int
	out       []byte
	seen      map[string]struct{} // see distinct
}

// calls keeps calls for reuse.
type calls struct{ pool sync.Pool }

// keepBytes is the largest buffer that is kept for the next request.
const keepBytes = 1 << 20

func (p *calls) get(s *Server, namespace string) *call {
	c, _ := p.pool.Get().(*call)
	if c == nil {
		c = &call{seen: map[string]struct{}{}}
	}
	c.server, c.namespace, c.limits = s, namespace, &s.limits
	return c
}

// put takes a call back, unless it has grown so much that keeping it would be a leak.
func (p *calls) put(c *call) {
	if cap(c.parser.levels) > keepBytes/1024 || cap(c.parser.names) > keepBytes/64 || cap(c.body) > keepBytes || cap(c.out) > keepBytes || cap(c.keys.items) > keepBytes/64 || cap(c.written.items) > keepBytes/64 {
		return
	}
	c.reset()
	c.ctx, c.index, c.out, c.pathRank = nil, nil, c.out[:0], 0
	p.pool.Put(c)
}

// A request is dropped by shed that holds more than this. One of 512 keys is below: its memory is used again, which takes a sixth off the time of a query.
const (
	shedBody   = 64 << 10 // bytes
	shedAnswer = 16 << 10 // bytes
	shedItems  = 2 << 10  // of a list: of short keys it takes many times what they take in the text
)

// shed drops a large request, of which only the answer is left to send: a client may be slow to read it.
func (c *call) shed() {
	items := max(cap(c.keys.items), cap(c.written.items), cap(c.release.items), cap(c.parser.names), cap(c.parser.levels))
	if cap(c.body) > shedBody || items > shedItems || len(c.out) > shedAnswer {
		c.request = request{limits: c.limits}
	}
}

// makeKnown initialises a rank, and logs whether pages were dropped.
func (c *call) makeKnown(s pageservice.Space, o pageservice.RankOptions) error {
	state, err := c.index.Initialize(c.ctx, s, c.pathRank, o)
	if err := c.noteChange(err); err != nil {
		return err
	}
	c.server.metrics.know(c.namespace)
	log := c.server.log.With("namespace", s.Namespace, "set", s.Set, "rank", c.pathRank, "pages", o.NumPages)
	switch {
	case state.Dropped > 0:
		log.Warn("rank came back with another number of pages, its old pages are dropped", "dropped_pages", state.Dropped)
	case !state.Known:
		log.Info("new rank")
	}
	return nil
}

// reserveIn reserves pages for keys. Only a new page needs the disk, and so proves that
// the disk takes writes.
func (c *call) reserveIn(s pageservice.Space, rank int, keys []string, allOrNothing bool) ([]pageservice.Grant, error) {
	grants, err := c.index.Reserve(c.ctx, s, rank, keys, allOrNothing)
	if slices.ContainsFunc(grants, func(g pageservice.Grant) bool { return !g.Present && g.Page != pageservice.None }) {
		return grants, c.noteChange(err)
	}
	return grants, err
}

// confirmIn confirms and releases the pages that the request names.
func (c *call) confirmIn(s pageservice.Space, rank int) error {
	done, err := c.index.Confirm(c.ctx, s, rank, c.written.items, c.release.items)
	if err := c.noteChange(err); err != nil {
		return err
	}
	if done.Ignored > 0 {
		c.server.log.Debug("ignored pages that are not the caller's", "namespace", s.Namespace, "set", s.Set, "rank", rank, "pages", done.Ignored)
	}
	return nil
}

// noteChange records, for readiness, that a change of the index succeeded, and returns
// err. Failed changes are recorded by translate.
func (c *call) noteChange(err error) error {
	if err == nil {
		c.server.writes.worked()
	}
	return err
}
