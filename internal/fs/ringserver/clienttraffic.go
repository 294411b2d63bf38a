package ringserver

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/histogram"
)

// ClientTraffic is what the rings of one user's processes with the same name have moved since the server was made.
type ClientTraffic struct {
	Process string // as Process.Name
	UID     uint32
	Other   bool // all after the first mostClients, whatever they are

	Reads, Writes ClientMoved
}

// ClientMoved is what rings of one direction have moved.
type ClientMoved struct {
	Sizes []SizeMoved // requests of at most each of SizeBounds, but more than the one before; then the larger ones
	// Queued is how long requests waited until a worker took them: from when the daemon saw them in the ring.
	Queued histogram.Count
	// Batches are how often a worker took at most that many requests at once, by BatchBounds; then more. Batched is the sum of those requests.
	Batches []int64
	Batched int64
}

// SizeMoved is what requests of a size have moved.
type SizeMoved struct {
	Bytes int64
	Took  histogram.Count // from admission to completion
}

// SizeBounds are the bounds of ClientMoved.Sizes, in bytes that a request asks for.
func SizeBounds() []uint64 { return sizeBounds[:] }

var sizeBounds = [...]uint64{4 << 10, 64 << 10, 1 << 20, 16 << 20}

func sizeClass(bytes uint64) int {
	i := 0
	for i < len(sizeBounds) && bytes > sizeBounds[i] {
		i++
	}
	return i
}

// BatchBounds are the bounds of ClientMoved.Batches.
func BatchBounds() []int { return batchBounds[:] }

var batchBounds = [...]int{1, 2, 4, 8, quantumRequests}

func batchClass(requests int) int {
	i := 0
	for i < len(batchBounds) && requests > batchBounds[i] {
		i++
	}
	return i
}

// mostClients bounds the clients that are counted apart: users make them.
const mostClients = 16

// clientDirection counts one direction of a client.
type clientDirection struct {
	sizes   [len(sizeBounds) + 1]sizeTraffic
	queued  *histogram.Histogram
	batches [len(batchBounds) + 1]atomic.Int64
	batched atomic.Int64
}

type sizeTraffic struct {
	bytes atomic.Int64
	took  *histogram.Histogram
}

func newClientDirection() *clientDirection {
	d := &clientDirection{queued: histogram.New(trafficBounds[:])}
	for i := range d.sizes {
		d.sizes[i].took = histogram.New(trafficBounds[:])
	}
	return d
}

func (d *clientDirection) read() ClientMoved {
	all := ClientMoved{Queued: d.queued.Count(), Batched: d.batched.Load()}
	for i := range d.sizes {
		all.Sizes = append(all.Sizes, SizeMoved{d.sizes[i].bytes.Load(), d.sizes[i].took.Count()})
	}
	for i := range d.batches {
		all.Batches = append(all.Batches, d.batches[i].Load())
	}
	return all
}

// clientTraffic counts what a client moves.
type clientTraffic struct{ reads, writes *clientDirection }

func newClientTraffic() *clientTraffic {
	return &clientTraffic{newClientDirection(), newClientDirection()}
}

func (c *clientTraffic) of(write bool) *clientDirection {
	if write {
		return c.writes
	}
	return c.reads
}

// clientTable counts by client. Clients are never removed, so that the counts only grow.
type clientTable struct {
	mu    sync.Mutex
	known map[clientKey]*clientTraffic
	other *clientTraffic
}

type clientKey struct {
	name string
	uid  uint32
}

func newClientTable() *clientTable {
	return &clientTable{known: map[clientKey]*clientTraffic{}, other: newClientTraffic()}
}

// of returns where the rings of a user's processes of that name count.
func (t *clientTable) of(name string, uid uint32) *clientTraffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := clientKey{name, uid}
	c := t.known[k]
	switch {
	case c != nil:
	case len(t.known) >= mostClients:
		c = t.other
	default:
		c = newClientTraffic()
		t.known[k] = c
	}
	return c
}

// ClientTraffic returns what rings have moved, by client in order of their names, others last. It may be called at any time.
func (s *Server) ClientTraffic() []ClientTraffic {
	t := s.clients
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []ClientTraffic
	for k, c := range t.known {
		all = append(all, ClientTraffic{Process: k.name, UID: k.uid, Reads: c.reads.read(), Writes: c.writes.read()})
	}
	slices.SortFunc(all, func(a, b ClientTraffic) int {
		return cmp.Or(strings.Compare(a.Process, b.Process), cmp.Compare(a.UID, b.UID))
	})
	return append(all, ClientTraffic{Other: true, Reads: t.other.reads.read(), Writes: t.other.writes.read()})
}
