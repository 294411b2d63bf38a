package ringserver

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/histogram"
)

// ClientTraffic is what the rings of one user's processes with the same name have moved since they have a row of their own.
type ClientTraffic struct {
	Process string // as Process.Name
	UID     uint32
	Other   bool // all that have no row of their own, see mostClients

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

// mostClients bounds the clients that are counted apart: users make them, see rows.
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

// add adds what another one has counted.
func (d *clientDirection) add(from *clientDirection) {
	for i := range d.sizes {
		d.sizes[i].bytes.Add(from.sizes[i].bytes.Load())
		d.sizes[i].took.Merge(from.sizes[i].took)
	}
	d.queued.Merge(from.queued)
	for i := range d.batches {
		d.batches[i].Add(from.batches[i].Load())
	}
	d.batched.Add(from.batched.Load())
}

// clientTraffic counts what a client moves.
type clientTraffic struct {
	rows.Held
	reads, writes *clientDirection
}

type clientKey struct {
	name string
	uid  uint32
}

func newClientTraffic() *clientTraffic {
	return &clientTraffic{reads: newClientDirection(), writes: newClientDirection()}
}

// Total implements rows.Row.
func (c *clientTraffic) Total() int64 { return c.reads.batched.Load() + c.writes.batched.Load() }

// Add implements rows.Row.
func (c *clientTraffic) Add(from *clientTraffic) {
	c.reads.add(from.reads)
	c.writes.add(from.writes)
}

func (c *clientTraffic) of(write bool) *clientDirection {
	if write {
		return c.writes
	}
	return c.reads
}

// countAs says which client the ring is of, before it is served.
func (r *ring) countAs(k clientKey) { r.clientKey, r.client = k, r.server.clients.Of(k.uid, k) }

// clientRow returns where the ring's requests count by client. The caller holds mu.
func (r *ring) clientRow() *clientDirection {
	if r.client.Gone() {
		r.client = r.server.clients.Of(r.clientKey.uid, r.clientKey)
	}
	return r.client.of(r.write)
}

// ClientTraffic returns what rings have moved, by client in order of their names, others last, without clients that have lost their row. It
// may be called at any time.
func (s *Server) ClientTraffic() []ClientTraffic {
	named, others, _ := s.clients.All()
	var all []ClientTraffic
	for k, c := range named {
		all = append(all, ClientTraffic{Process: k.name, UID: k.uid, Reads: c.reads.read(), Writes: c.writes.read()})
	}
	slices.SortFunc(all, func(a, b ClientTraffic) int {
		return cmp.Or(strings.Compare(a.Process, b.Process), cmp.Compare(a.UID, b.UID))
	})
	return append(all, ClientTraffic{Other: true, Reads: others.reads.read(), Writes: others.writes.read()})
}
