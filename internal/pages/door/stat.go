package door

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/pages"
)

// statCollector shows the book's own numbers, asked for at each scrape.
type statCollector struct {
	book   pages.Book
	pages  *prometheus.Desc
	gauges []gauge
	events *prometheus.Desc
}

// gauge is one number of a space.
type gauge struct {
	desc  *prometheus.Desc
	value func(*pages.SpaceState) int64
}

// scrapeTimeout bounds how long a scrape waits for the book.
const scrapeTimeout = 5 * time.Second

func newStatCollector(book pages.Book) *statCollector {
	space := []string{"namespace", "set"}
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("kv3fs_pages_"+name, help, append(space[:2:2], more...), nil)
	}
	return &statCollector{
		book: book,
		pages: desc("pages", "Pages of all ranks by state. free: nobody's. reserved: handed to a writer that has not confirmed yet; many for long mean that writers die. keyed: hold a key. resting: given up and not yet to be written again. "+
			"free at 0 is normal for a full store: keys are evicted instead.", "state"),
		gauges: []gauge{
			{desc("keys", "Keys that have at least one page."), func(s *pages.SpaceState) int64 { return s.Keys }},
			{desc("complete_keys", "Keys that every rank has confirmed: those that engines can hit. Far fewer than keys means that a rank does not confirm."), func(s *pages.SpaceState) int64 { return s.Complete }},
			{desc("leased_keys", "Keys that may not be evicted now, because their pages were just given to a reader. Near keys, writers get no pages: the store is too small for the working set."), func(s *pages.SpaceState) int64 { return s.Leased }},
			{desc("ranks", "Ranks that make a key complete."), func(s *pages.SpaceState) int64 { return int64(s.World) }},
		},
		events: desc("events_total", "What happened to keys and pages since the process started. hits and misses: keys located, and asked for in vain. refused: keys that got no page, because all others were leased. "+
			"ignored: confirmations and releases that were not the caller's. expired: reservations that nobody confirmed. dropped: pages of ranks that came back with another size.", "event"),
	}
}

// Describe tells of every metric there is.
func (c *statCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pages
	out <- c.events
	for _, g := range c.gauges {
		out <- g.desc
	}
}

// Collect asks the book. Spaces beyond maxLabels are added up as "other".
func (c *statCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	spaces, err := c.book.Stat(ctx)
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.pages, err)
		return
	}
	var other *pages.SpaceState
	for i := range spaces {
		if i < maxLabels {
			c.emit(out, &spaces[i], label(spaces[i].Space.Namespace), spaces[i].Space.Set)
			continue
		}
		if other == nil {
			other = new(pages.SpaceState)
		}
		add(other, &spaces[i])
	}
	if other != nil {
		c.emit(out, other, otherLabel, otherLabel)
	}
}

func (c *statCollector) emit(out chan<- prometheus.Metric, s *pages.SpaceState, namespace, set string) {
	var all pages.RankPages
	for _, r := range s.Ranks {
		all.Free += r.Free
		all.Reserved += r.Reserved
		all.Keyed += r.Keyed
		all.Resting += r.Resting
	}
	for state, n := range map[string]int64{"free": all.Free, "reserved": all.Reserved, "keyed": all.Keyed, "resting": all.Resting} {
		out <- prometheus.MustNewConstMetric(c.pages, prometheus.GaugeValue, float64(n), namespace, set, state)
	}
	for _, g := range c.gauges {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(s)), namespace, set)
	}
	n := s.Counters
	for event, n := range map[string]int64{
		"hits": n.Hits, "misses": n.Misses, "reserved": n.Reserved, "refused": n.Refused, "confirmed": n.Confirmed,
		"ignored": n.Ignored, "evicted": n.Evicted, "expired": n.Expired, "released": n.Released, "dropped": n.DroppedPages,
	} {
		out <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(n), namespace, set, event)
	}
}

func add(to, s *pages.SpaceState) {
	to.Keys += s.Keys
	to.Complete += s.Complete
	to.Leased += s.Leased
	to.World = max(to.World, s.World)
	to.Ranks = append(to.Ranks, s.Ranks...)
	a, b := &to.Counters, s.Counters
	a.Hits += b.Hits
	a.Misses += b.Misses
	a.Reserved += b.Reserved
	a.Refused += b.Refused
	a.Confirmed += b.Confirmed
	a.Ignored += b.Ignored
	a.Evicted += b.Evicted
	a.Expired += b.Expired
	a.Released += b.Released
	a.DroppedPages += b.DroppedPages
}
