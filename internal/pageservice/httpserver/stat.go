package httpserver

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// stats caches the state of all spaces. A query takes time, and locks of the index: one
// caller at a time makes it, and those who waited meanwhile share its result.
type stats struct {
	query func(context.Context) ([]pageservice.SpaceState, error)
	one   chan struct{} // holds a token while a caller uses the fields below
	at    time.Time     // when the last query began
	last  []pageservice.SpaceState
}

// statAge is the greatest age of the state that metrics, or a check, use.
const statAge = time.Second

// since returns a state that is no older than t. Callers must not change it.
func (s *stats) since(ctx context.Context, t time.Time) ([]pageservice.SpaceState, error) {
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !s.at.Before(t) {
		return s.last, nil
	}
	at := time.Now()
	last, err := s.query(ctx)
	if err != nil {
		return nil, err
	}
	s.at, s.last = at, last
	return last, nil
}

// Spaces returns the state of all spaces of this host's index, which is a second old at most; here is false where another host
// has the index, or nobody does.
func (s *Server) Spaces(ctx context.Context) (spaces []pageservice.SpaceState, here bool, err error) {
	if s.source.Load().Index == nil {
		return nil, false, nil
	}
	spaces, err = s.stats.since(ctx, time.Now().Add(-statAge))
	return spaces, true, err
}

// Counted returns the events of all spaces of this host's index, for those who ask often.
func (s *Server) Counted() pageservice.Counters {
	if x := s.source.Load().Index; x != nil {
		return x.Counted()
	}
	return pageservice.Counters{}
}

// statCollector exports the state of all spaces as metrics.
type statCollector struct {
	stats  *stats
	pages  *prometheus.Desc
	gauges []gauge
	events *prometheus.Desc

	// For the events: spaces with labels of their own, and what the others have counted.
	mu       sync.Mutex
	labelled map[pageservice.Space]bool
	counted  map[pageservice.Space]pageservice.Counters
	rest     pageservice.Counters
}

// gauge is one number of a space.
type gauge struct {
	desc  *prometheus.Desc
	value func(*pageservice.SpaceState) int64
}

// scrapeTimeout bounds how long a scrape waits for the index.
const scrapeTimeout = 5 * time.Second

func newStatCollector(s *stats) *statCollector {
	space := []string{"namespace", "set"}
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("kv3fs_pages_"+name, help, append(space[:2:2], more...), nil)
	}
	return &statCollector{
		stats:    s,
		labelled: map[pageservice.Space]bool{}, counted: map[pageservice.Space]pageservice.Counters{},
		pages: desc("pages", "Pages of all ranks by state. free: without an owner. reserved: handed to a writer that has not confirmed yet; if many stay so, writers die. keyed: belong to a key. resting: in quarantine, given up and not yet to be written again. "+
			"free at 0 is normal for a full file: keys are evicted instead.", "state"),
		gauges: []gauge{
			{desc("keys", "Keys that have at least one page."), func(s *pageservice.SpaceState) int64 { return s.Keys }},
			{desc("complete_keys", "Keys that every rank has confirmed: those that engines can hit. Far fewer than keys means that a rank does not confirm."), func(s *pageservice.SpaceState) int64 { return s.Complete }},
			{desc("leased_keys", "Keys that may not be evicted now, because a reader was just told of their pages. If this is close to keys, writers get no pages: the file is too small for the working set."), func(s *pageservice.SpaceState) int64 { return s.Leased }},
			{desc("kept_free_pages", "Pages among the free ones that a restart or another host would give out at once (--pages-free). Near 0 for long means that every other page is in use."), func(s *pageservice.SpaceState) (n int64) {
				for _, r := range s.Ranks {
					n += r.KeptFree
				}
				return n
			}},
			{desc("ranks", "Ranks that a key needs to be complete."), func(s *pageservice.SpaceState) int64 { return int64(s.World) }},
		},
		events: desc("events_total", "Events of keys and pages since the process started. hits and misses: keys that were found, and not found. refused: keys that got no page, because every page was leased, reserved or in quarantine. "+
			"ignored: confirmations and releases that were not the caller's. expired: reservations that nobody confirmed. dropped: pages of ranks that came back with another size.", "event"),
	}
}

// Describe implements prometheus.Collector.
func (c *statCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pages
	out <- c.events
	for _, g := range c.gauges {
		out <- g.desc
	}
}

// Collect implements prometheus.Collector. Spaces beyond maxLabels are added up as one.
func (c *statCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	spaces, err := c.stats.since(ctx, time.Now().Add(-statAge))
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.pages, err)
		return
	}
	var other *pageservice.SpaceState
	for i := range spaces {
		if i < maxLabels {
			namespace, set := label(spaces[i].Space.Namespace), spaces[i].Space.Set
			c.emitNow(out, &spaces[i], namespace, set)
			continue
		}
		if other == nil {
			other = new(pageservice.SpaceState)
		}
		add(other, &spaces[i])
	}
	if other != nil {
		c.emitNow(out, other, otherLabel, otherLabel)
	}
	c.collectEvents(out, spaces)
}

// collectEvents exports the events. A space keeps its label, or its place among the others,
// for as long as it exists. What the others count is added up as it grows, because a
// counter must not decrease when one of them ends.
func (c *statCollector) collectEvents(out chan<- prometheus.Metric, spaces []pageservice.SpaceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	labelled := map[pageservice.Space]bool{}
	counted := map[pageservice.Space]pageservice.Counters{}
	for _, s := range spaces {
		if c.labelled[s.Space] {
			labelled[s.Space] = true
		}
	}
	for _, s := range spaces {
		before, isOther := c.counted[s.Space]
		if !isOther && len(labelled) < maxLabels {
			labelled[s.Space] = true
		}
		if labelled[s.Space] {
			c.emitEvents(out, &s.Counters, label(s.Space.Namespace), s.Space.Set)
			continue
		}
		counted[s.Space] = s.Counters
		for i, n := range eventsOf(&c.rest) {
			*n.count += max(0, *eventsOf(&s.Counters)[i].count-*eventsOf(&before)[i].count)
		}
	}
	c.labelled, c.counted = labelled, counted
	if c.rest != (pageservice.Counters{}) || len(counted) > 0 {
		c.emitEvents(out, &c.rest, otherLabel, otherLabel)
	}
}

func (c *statCollector) emitNow(out chan<- prometheus.Metric, s *pageservice.SpaceState, namespace, set string) {
	var all pageservice.RankPages
	for _, r := range s.Ranks {
		all.Free += r.Free
		all.Reserved += r.Reserved
		all.Keyed += r.Keyed
		all.Quarantined += r.Quarantined
	}
	for state, n := range map[string]int64{"free": all.Free, "reserved": all.Reserved, "keyed": all.Keyed, "resting": all.Quarantined} {
		out <- prometheus.MustNewConstMetric(c.pages, prometheus.GaugeValue, float64(n), namespace, set, state)
	}
	for _, g := range c.gauges {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(s)), namespace, set)
	}
}

func (c *statCollector) emitEvents(out chan<- prometheus.Metric, n *pageservice.Counters, namespace, set string) {
	for _, e := range eventsOf(n) {
		out <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(*e.count), namespace, set, e.name)
	}
}

// event is one counter with its label.
type event struct {
	name  string
	count *int64
}

func eventsOf(n *pageservice.Counters) []event {
	return []event{
		{"hits", &n.Hits}, {"misses", &n.Misses}, {"reserved", &n.Reserved}, {"refused", &n.Refused}, {"confirmed", &n.Confirmed},
		{"ignored", &n.Ignored}, {"evicted", &n.Evicted}, {"expired", &n.Expired}, {"released", &n.Released}, {"dropped", &n.DroppedPages},
	}
}

func add(to, s *pageservice.SpaceState) {
	to.Keys += s.Keys
	to.Complete += s.Complete
	to.Leased += s.Leased
	to.World = max(to.World, s.World)
	to.Ranks = append(to.Ranks, s.Ranks...)
}
