package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice/etcdlog"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// Roles of httpserver.StoreState that a log has no word for.
const waiting = "waiting"

// watchedSpace keeps what etcd said last, for those who ask often.
type watchedSpace struct {
	mu      sync.Mutex
	at      time.Time
	members []cluster.Member
	hosts   []cluster.Host
}

// askEtcdEvery is the greatest age of what is told of etcd and of the other hosts.
const askEtcdEvery = 2 * time.Second

// ask returns the members of etcd, and the hosts that are listed there.
func (w *watchedSpace) ask(ctx context.Context, c *cluster.Cluster) ([]cluster.Member, []cluster.Host) {
	if c == nil {
		return nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.at) > askEtcdEvery {
		ctx, cancel := context.WithTimeout(ctx, c.LeaseTTL()/2)
		defer cancel()
		if hosts, err := c.Hosts(ctx); err == nil { // else what was true last is the best that is known
			w.hosts = hosts
		}
		w.members = c.Space(ctx)
		w.at = time.Now()
	}
	return w.members, w.hosts
}

// state says what this host does, for kv3fs pages stat.
func (r *replica) state(ctx context.Context) httpserver.StoreState {
	s := httpserver.StoreState{Store: r.p.Cluster.Store.String(), Role: waiting, Host: r.at.me.Identity}
	if l := r.etcd.Load(); l != nil {
		is := l.State()
		s.Role, s.Applied, s.Head, s.Conflict = string(is.Role), is.Applied, max(is.Head, is.Applied), is.Conflict
	}
	r.mu.Lock()
	if l := r.leader; l.ID != "" {
		s.Leader = &httpserver.Leader{Host: l.ID, Address: l.Address, Version: l.Version, ForSeconds: (host.SinceBoot() - r.since).Seconds()}
	}
	s.LeaderChanges = r.changes
	r.mu.Unlock()
	why := r.reason()
	switch {
	case s.Role == string(etcdlog.Leading):
		if seen := r.seen.Load(); seen != nil {
			if why := seen.unseen(); why != nil {
				s.Why = why.Error()
			}
		}
	case why != nil:
		s.Why = why.Error()
	case s.Leader == nil:
		s.Role = waiting
	default:
		if err := r.client.State(); err != nil {
			s.Why = err.Error()
		}
	}
	members, hosts := r.watched.ask(ctx, r.cluster.Load())
	for _, h := range hosts {
		s.Hosts = append(s.Hosts, httpserver.Peer{Host: h.ID, Address: h.Address, Version: h.Version, Role: h.Role, Applied: h.Applied})
	}
	for _, m := range members {
		is := httpserver.StoreMember{Address: m.Endpoint, Version: m.Version, Bytes: m.DatabaseBytes, UsedBytes: m.InUseBytes, QuotaBytes: m.QuotaBytes}
		if m.NoSpace {
			is.Alarms = append(is.Alarms, "NOSPACE")
		}
		if m.Corrupt {
			is.Alarms = append(is.Alarms, "CORRUPT")
		}
		if m.Err != nil {
			is.Error = m.Err.Error()
		}
		s.Members = append(s.Members, is)
	}
	return s
}

// clusterMetrics exports the state of a replica.
type clusterMetrics struct {
	r                                             *replica
	leading, applied, head, lag, hosts, lead, age *prometheus.Desc
	conflict, bytes, visible                      *prometheus.Desc
}

func newClusterMetrics(r *replica) *clusterMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kv3fs_pages_"+name, help, labels, nil)
	}
	return &clusterMetrics{
		r:        r,
		leading:  desc("leading", "1 while this host leads the page service of all hosts, 0 while it forwards requests to the leader."),
		applied:  desc("log_applied", "Index in the common log up to which this host has applied it."),
		head:     desc("log_head", "Index of the newest entry of the common log."),
		lag:      desc("log_lag", "Entries of the common log that this host has yet to apply. More than a few for long: it could not lead at once."),
		hosts:    desc("hosts", "Hosts that etcd lists, as this host was told a moment ago, or when etcd last answered."),
		lead:     desc("leader_changes_total", "How often another host has taken the lead since this daemon started. Each change costs engines a moment of misses."),
		age:      desc("leader_age_seconds", "For how long the present leader has led, as far as this daemon has seen; absent while nobody leads."),
		conflict: desc("hosts_disagree", "1 while this host leads and hosts have different states at the same place of the log: no snapshot is taken until they were restarted. kv3fs pages stat names them."),
		visible:  desc("writes_visible", "1 if another host reads at once what this one's rings write, 0 if only later: engines there may get wrong KV. Absent until another host has said so since the start."),
		bytes:    desc("etcd_bytes", "Database of a member of etcd. used: what is in it; the rest is free inside. quota: at which it takes nothing more; absent where it does not say. New keys are refused when used is 70 % of quota.", "member", "kind"),
	}
}

// Describe implements prometheus.Collector.
func (m *clusterMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.leading, m.applied, m.head, m.lag, m.hosts, m.lead, m.age, m.conflict, m.bytes, m.visible} {
		out <- d
	}
}

// metricsTimeout bounds how long a scrape waits for etcd.
const metricsTimeout = 2 * time.Second

// Collect implements prometheus.Collector.
func (m *clusterMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), metricsTimeout)
	defer cancel()
	s := m.r.state(ctx)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	is := func(d *prometheus.Desc, holds bool) {
		v := 0.0
		if holds {
			v = 1
		}
		gauge(d, v)
	}
	is(m.leading, s.Role == string(etcdlog.Leading))
	is(m.conflict, s.Conflict != "")
	if at := m.r.at.visible.known(); at != nil {
		is(m.visible, *at)
	}
	if s.Leader != nil {
		gauge(m.age, s.Leader.ForSeconds)
	}
	gauge(m.lag, float64(s.Head-s.Applied))
	gauge(m.applied, float64(s.Applied))
	gauge(m.head, float64(s.Head))
	gauge(m.hosts, float64(len(s.Hosts)))
	out <- prometheus.MustNewConstMetric(m.lead, prometheus.CounterValue, float64(s.LeaderChanges))
	for _, member := range s.Members {
		if member.Error != "" {
			continue
		}
		gauge(m.bytes, float64(member.Bytes), member.Address, "database")
		gauge(m.bytes, float64(member.UsedBytes), member.Address, "used")
		if member.QuotaBytes > 0 {
			gauge(m.bytes, float64(member.QuotaBytes), member.Address, "quota")
		}
	}
}
