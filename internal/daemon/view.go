package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/admin/history"
	"github.com/kv3fs/kv3fs/internal/admin/web"
	"github.com/kv3fs/kv3fs/internal/fs/lookups"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// view is what a daemon shows of itself: api.Source over its parts, and what they counted over the last day. It asks no disk
// but for the space of the file system, and what may wait for one does not keep others waiting, see asked.
type view struct {
	c       Config
	me      hostID
	data    string
	point   string
	shared  bool
	io      string
	began   time.Time
	rings   *ringserver.Server
	looked  *lookups.Counter
	keeper  func() *keeper.Keeper // that is at work now; nil: none
	pages   *pageService
	ready   *readiness
	web     atomic.Pointer[web.Server]
	through atomic.Bool // the mount has passthrough

	history *history.History[measured]
	doctor  findings
	kept    asked[kept]
	usage   asked[heldUsage]
	hosts   asked[api.Hosts]
	users   asked[map[string]string]

	cancel context.CancelFunc
	work   sync.WaitGroup
}

// start begins to measure, until close.
func (v *view) start() {
	var ctx context.Context
	ctx, v.cancel = context.WithCancel(context.Background())
	v.began = time.Now()
	v.doctor = findings{look: v.c.Doctor, ctx: ctx, work: &v.work}
	v.history = history.New(history.Options[measured]{Series: series(), Take: v.measure, Clock: host.SinceBoot})
	v.work.Go(func() { v.history.Run(ctx) })
}

// close ends what is under way, and waits for it. Nobody may ask any more.
func (v *view) close() {
	v.cancel()
	v.work.Wait()
}

// handler returns what answers below api.Prefix; unchanged says why its clients may change nothing, see api.Options.
func (v *view) handler(unchanged func() string) http.Handler {
	audit := v.c.audit()
	changed := func(r *http.Request, call string, attrs ...any) {
		attrs = append([]any{"call", call}, attrs...)
		if who, ok := admin.CallerOf(r.Context()); ok {
			attrs = append(attrs, who.Attributes()...)
		} else {
			attrs = append(attrs, "client", r.RemoteAddr)
		}
		audit.Info("an operator's command", attrs...)
	}
	o := api.Options{Source: v, Unchanged: unchanged, Changed: changed}
	if v.c.Lines != nil {
		o.Log, o.Level = shownLog{v.c.Lines}, shownLog{v.c.Lines}
	}
	return api.New(o)
}

// kept is what a keeper says of itself.
type kept struct {
	state  keeper.State
	quotas []keeper.Quota
	pins   []keeper.Pin
	ttls   []keeper.TTL
}

// keptBy asks a keeper, which may wait for one who looks for the directory of a quota on a disk that hangs.
func (v *view) keptBy(ctx context.Context, k *keeper.Keeper) (kept, error) {
	const age = 100 * time.Millisecond
	return v.kept.get(ctx, v.work.Go, age, func() (kept, error) { return kept{k.State(), k.Quotas(), k.Pins(), k.TTLs()}, nil })
}

// Status implements api.Source.
func (v *view) Status(ctx context.Context) (api.Status, error) {
	now := time.Now()
	s := api.Status{
		Version: v.c.Version, PID: os.Getpid(), Host: v.me.Host, Identity: v.me.Identity,
		Started: v.began, Now: now, UptimeSeconds: now.Sub(v.began).Seconds(),
		Mount: v.point, Data: v.data, Readonly: v.c.Settings.Readonly, Shared: v.shared, IO: v.io, Checksums: v.c.Checksums, Passthrough: v.through.Load(),
		Health: api.Healthy, Checks: v.checks(ctx),
		Addresses: api.Addresses{Pages: []string{}},
		Rings:     v.moved().totals(),
		Clients:   v.held(),
		Findings:  v.doctor.summary(),
	}
	s.Limits.Registrations, s.Limits.RingUsers, s.Limits.MappedBytes = v.rings.Limits()
	if w := v.web.Load(); w != nil {
		s.Addresses.Admin = w.URL()
	}
	if v.pages != nil {
		for _, a := range v.pages.addresses() {
			s.Addresses.Pages = append(s.Addresses.Pages, a.String())
		}
	}
	if is, err := v.space(ctx); err == nil {
		s.Space = &api.Space{SizeBytes: is.bytes, FreeBytes: is.freeBytes, Files: is.files, FreeFiles: is.freeFiles}
	}
	if k := v.keeper(); k != nil {
		if is, ok := v.keptLately(ctx, k); ok {
			s.Keeper = &api.Kept{Capacity: is.Capacity, LimitBytes: is.LimitBytes, UsedBytes: is.UsedBytes, Files: is.Files, Scanned: is.Scanned}
		}
	}
	if s.Findings != nil && (s.Findings.Warnings+s.Findings.Failures > 0 || s.Findings.Error != "") {
		s.Health = api.Warnings
	}
	for _, c := range s.Checks {
		if !c.Ready {
			s.Health = api.Unhealthy
		}
	}
	return s, nil
}

// What hangs leaves the status without itself, soon enough for the API's bound.
const (
	checkTime = 2 * time.Second
	stateTime = time.Second // each for space and keeper
)

// checks asks all at once.
func (v *view) checks(ctx context.Context) []api.Check {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	asked := v.ready.checks()
	all := make([]api.Check, len(asked))
	var work sync.WaitGroup
	for i, c := range asked {
		work.Go(func() {
			all[i] = api.Check{Name: c.Name, Ready: true}
			if err := c.Ask(ctx); err != nil {
				all[i].Ready, all[i].Error = false, err.Error()
			}
		})
	}
	work.Wait()
	return all
}

func (v *view) space(ctx context.Context) (space, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	return v.ready.space.look(ctx)
}

// keptLately returns what a keeper says, or said last where it does not answer; false: it has not said anything.
func (v *view) keptLately(ctx context.Context, k *keeper.Keeper) (keeper.State, bool) {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	by, err := v.keptBy(ctx, k)
	if err == nil {
		return by.state, true
	}
	by, ok := v.kept.last()
	return by.state, ok
}

func (v *view) held() api.ClientTotals {
	h := v.rings.Totals()
	return api.ClientTotals{Processes: h.Processes, Rings: h.Rings, Iovs: h.Iovs, IovBytes: h.IovBytes}
}

// Hits implements api.Source.
func (v *view) Hits() api.Hits {
	all := api.Hits{Engines: []api.HitRate{}}
	counts, former := v.looked.Counts()
	if last := len(counts) - 1; last >= 0 && counts[last].Engine == "" {
		counts[last].Hits += former.Hits
		counts[last].Misses += former.Misses
	} else if former.Hits+former.Misses > 0 {
		counts = append(counts, former)
	}
	for _, c := range counts {
		one := api.HitRate{Engine: cmp.Or(c.Engine, "other"), Model: c.Model, Lookups: c.Hits + c.Misses, Hits: c.Hits, Misses: c.Misses, HitRatio: ratioOf(c.Hits, c.Hits+c.Misses)}
		all.Lookups += one.Lookups
		all.Hits += one.Hits
		all.Engines = append(all.Engines, one)
	}
	all.HitRatio = ratioOf(all.Hits, all.Lookups)
	slices.SortStableFunc(all.Engines, func(a, b api.HitRate) int { return cmp.Compare(b.Lookups, a.Lookups) })
	return all
}

// ratioOf returns a part of a number; nil: that is none.
func ratioOf(part, of int64) *float64 {
	if of == 0 {
		return nil
	}
	ratio := float64(part) / float64(of)
	return &ratio
}

// Keeper implements api.Source.
func (v *view) Keeper(ctx context.Context) (api.Keeping, error) {
	all := api.Keeping{Evictions: []api.Eviction{}, Quotas: []api.Quota{}, Pins: []api.Pin{}, TTLs: []api.TTL{}}
	k := v.keeper()
	if k == nil {
		all.Why = v.c.notKept.Error()
		return all, nil
	}
	by, err := v.keptBy(ctx, k)
	if err != nil {
		return all, err
	}
	is := by.state
	all.Keeps, all.State = true, &is
	all.Evictions = []api.Eviction{
		{Reason: "room", Files: is.EvictedFiles, Bytes: &is.EvictedBytes}, {Reason: "ttl", Files: is.ExpiredFiles},
		{Reason: "abandoned", Files: is.ReapedFiles}, {Reason: "operator", Files: is.RequestedFiles},
	}
	ages := api.Ages{Files: is.EvictedUnused.Files, SumSeconds: float64(is.EvictedUnused.SumSeconds)}
	for _, b := range is.EvictedUnused.BoundsSeconds {
		ages.BoundsSeconds = append(ages.BoundsSeconds, float64(b))
	}
	for _, n := range ages.Files {
		ages.Count += n
	}
	all.AgeAtEviction = &ages
	for _, q := range by.quotas {
		all.Quotas = append(all.Quotas, api.Quota{Path: q.Path, LimitBytes: q.Bytes, UsedBytes: q.UsedBytes, Files: q.Files, Missing: q.Missing})
	}
	for _, p := range by.pins {
		all.Pins = append(all.Pins, api.Pin{Pattern: p.Pattern, Owner: p.Owner, Model: p.Model})
	}
	for _, t := range by.ttls {
		all.TTLs = append(all.TTLs, api.TTL{Pattern: t.Pattern, UnusedSeconds: t.Unused.Seconds()})
	}
	return all, nil
}

// Curve implements api.Source.
func (v *view) Curve() api.Curve {
	c := api.Curve{Points: []api.CurvePoint{}}
	k := v.keeper()
	if k == nil {
		return c
	}
	c.HitRatio, c.Uses = k.Served()
	points := k.Curve()
	for _, p := range points {
		now := points[len(points)/2].CapacityBytes
		c.Points = append(c.Points, api.CurvePoint{CapacityBytes: p.CapacityBytes, Factor: float64(p.CapacityBytes) / float64(max(now, 1)), HitRatio: p.HitRatio})
	}
	return c
}

// mostRegistrations of one client are listed.
const mostRegistrations = 64

// Clients implements api.Source.
func (v *view) Clients(ctx context.Context, most int) api.Clients {
	all := api.Clients{ClientTotals: v.held(), Clients: []api.Client{}}
	found := v.rings.Processes()
	if all.More = max(len(found)-most, 0); all.More > 0 {
		found = found[:most]
	}
	names := v.userNames(ctx)
	for _, is := range found {
		uid := strconv.FormatUint(uint64(is.UID), 10)
		c := api.Client{
			PID: is.PID, UID: is.UID, User: names[uid], Name: is.Name, Rings: is.Rings, Iovs: is.Iovs, IovBytes: is.IovBytes, Registrations: []api.Registration{},
			More: max(len(is.Registrations)-mostRegistrations, 0),
		}
		for _, r := range is.Registrations[:len(is.Registrations)-c.More] {
			c.Registrations = append(c.Registrations, registrationOf(r))
		}
		all.Clients = append(all.Clients, c)
	}
	return all
}

func registrationOf(r ringserver.Held) api.Registration {
	one := api.Registration{Name: r.Name, Target: r.Target, Kind: "iov", Bytes: r.Bytes}
	if !r.Ring {
		return one
	}
	one.Kind, one.Direction, one.Priority, one.Depth, one.Entries = "ring", "read", "normal", r.Depth, r.Entries
	if r.Write {
		one.Direction = "write"
	}
	switch r.Priority {
	case wire.High:
		one.Priority = "high"
	case wire.Low:
		one.Priority = "low"
	}
	return one
}

// userNames returns the names of this host's users by their numbers, as they were a while ago.
func (v *view) userNames(ctx context.Context) map[string]string {
	const age = time.Minute
	names, _ := v.users.get(ctx, v.work.Go, age, func() (map[string]string, error) { return host.Local().UserNames(), nil })
	return names
}

// Bounds of what is told of the page service.
const (
	mostSpaces = 200
	mostRanks  = 256 // of a space
)

// Pages implements api.Source.
func (v *view) Pages(ctx context.Context) (api.Pages, error) {
	all := api.Pages{Serves: v.pages != nil, Spaces: []api.PageSpace{}}
	if v.pages == nil {
		return all, nil
	}
	spaces, here, err := v.pages.server.Spaces(ctx)
	if err != nil {
		return all, err
	}
	all.Here, all.More = here, max(len(spaces)-mostSpaces, 0)
	for _, s := range spaces[:len(spaces)-all.More] {
		all.Spaces = append(all.Spaces, pageSpaceOf(&s))
	}
	return all, nil
}

func pageSpaceOf(s *pageservice.SpaceState) api.PageSpace {
	one := api.PageSpace{
		Namespace: s.Space.Namespace, Set: s.Space.Set, World: s.World, Keys: s.Keys, Complete: s.Complete, Leased: s.Leased,
		Ranks: []api.PageRank{}, More: max(len(s.Ranks)-mostRanks, 0), Counters: api.PageCounters(s.Counters),
	}
	for _, r := range s.Ranks[:len(s.Ranks)-one.More] {
		one.Ranks = append(one.Ranks, api.PageRank{
			Rank: r.Rank, NumPages: r.NumPages, Free: r.Free, KeptFree: r.KeptFree, Reserved: r.Reserved, Keyed: r.Keyed, Resting: r.Quarantined,
		})
	}
	return one
}

// Hosts implements api.Source.
func (v *view) Hosts(ctx context.Context) (api.Hosts, error) {
	if v.pages == nil || v.c.Pages.Cluster == nil {
		return api.Hosts{Self: v.me.Identity, Hosts: []api.Host{}}, nil
	}
	return v.hosts.get(ctx, v.work.Go, time.Second, func() (api.Hosts, error) {
		ctx, cancel := context.WithTimeout(context.Background(), metricsTimeout)
		defer cancel()
		s := v.pages.server.StoreState(ctx)
		all := api.Hosts{Cluster: true, Store: s.Store, Self: s.Host, Role: s.Role, Why: s.Why, Hosts: []api.Host{}}
		if s.Leader != nil {
			all.Leader = s.Leader.Host
		}
		head := s.Head
		for _, p := range s.Hosts {
			head = max(head, p.Applied)
		}
		for _, p := range s.Hosts {
			all.Hosts = append(all.Hosts, api.Host{ID: p.Host, Address: p.Address, Version: p.Version, Role: p.Role, Applied: p.Applied, Lag: head - p.Applied, Self: p.Host == s.Host})
		}
		return all, nil
	})
}

// Findings implements api.Source.
func (v *view) Findings(ctx context.Context) api.Findings { return v.doctor.get(ctx) }

// heldUsage is an answer that was made for a question.
type heldUsage struct {
	q  api.UsageQuery
	is api.Usage
}

// Usage implements api.Source. It looks at a record of each directory, so it is done once at a time, and at most half of the time.
func (v *view) Usage(ctx context.Context, q api.UsageQuery) (api.Usage, error) {
	k := v.keeper()
	if k == nil {
		return api.Usage{Path: q.Path, Directories: []api.Directory{}, Engines: []api.Engine{}}, nil
	}
	for age := time.Second; ; age = 0 {
		is, err := v.usage.get(ctx, v.work.Go, age, func() (heldUsage, error) {
			is, err := usageOf(k, q)
			return heldUsage{q, is}, err
		})
		switch {
		case ctx.Err() != nil:
			return api.Usage{}, ctx.Err()
		case is.q != q:
			continue // another's
		case errors.Is(err, unix.ENOENT):
			return api.Usage{}, api.Refusal{Status: http.StatusNotFound, Failure: api.Failure{
				Error: fmt.Sprintf("there is no directory %q below the data directory", q.Path), Cure: "give a path below the data directory, such as that of kv3fs du",
			}}
		}
		return is.is, err
	}
}

// usageOf asks a keeper.
func usageOf(k *keeper.Keeper, q api.UsageQuery) (api.Usage, error) {
	branches, groups, err := k.Breakdown(q.Path, q.Depth, q.Most)
	if err != nil {
		return api.Usage{}, err
	}
	top := nested(branches)
	u := api.Usage{
		Keeps: true, Path: top.Path, Complete: k.Inventory().Scanned(), Bytes: top.Bytes, Files: top.Files,
		Directories: top.Directories, More: top.More, Engines: []api.Engine{},
	}
	places := map[string]int{}
	for _, g := range groups {
		i, ok := places[g.Owner]
		if !ok {
			i = len(u.Engines)
			places[g.Owner] = i
			u.Engines = append(u.Engines, api.Engine{Engine: g.Owner, Models: []api.Model{}})
		}
		e := &u.Engines[i]
		e.Bytes += g.Bytes
		e.Files += g.Files
		m := api.Model{Model: g.Model, Bytes: g.Bytes, Files: g.Files, Directories: []api.Place{}}
		for _, b := range g.Branches {
			m.Directories = append(m.Directories, api.Place{Path: b.Path, Bytes: b.Bytes, Files: b.Files})
		}
		e.Models = append(e.Models, m)
	}
	slices.SortStableFunc(u.Engines, func(a, b api.Engine) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return u, nil
}

// nested makes a tree of directories, each of which comes after its parent, and returns the top.
func nested(branches []keeper.Branch) api.Directory {
	all := make([]api.Directory, len(branches))
	for i := len(branches) - 1; i >= 0; i-- {
		b, d := branches[i], &all[i]
		d.Path, d.Bytes, d.Files, d.More = b.Path, b.Bytes, b.Files, b.More
		if b.Limit < inventory.Unlimited {
			d.LimitBytes = b.Limit
		}
		if d.Directories == nil {
			d.Directories = []api.Directory{}
		}
		slices.SortFunc(d.Directories, func(a, b api.Directory) int {
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Path, b.Path))
		})
		if b.Parent >= 0 {
			all[b.Parent].Directories = append(all[b.Parent].Directories, *d)
		}
	}
	return all[0]
}
