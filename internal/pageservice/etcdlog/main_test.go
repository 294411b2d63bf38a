package etcdlog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestMain(m *testing.M) { os.Exit(etcd.Main(m, 5)) }

// patience bounds waits for what takes milliseconds on a machine with nothing else to do.
const patience = 3 * time.Minute

const dataID = "data-1"

// await waits for something that nothing tells.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// receive waits for a channel.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v in vain: %s", patience, what)
		panic("not reached")
	}
}

// A host that is kept from running for seconds must not lose its lease where a test does not want that. Tests that wait for leases
// or for lost requests take short ones.
const (
	longLease  = 10 * time.Second
	shortLease = 3 * time.Second
)

// site is what the hosts of one cluster share.
type site struct {
	*testing.T
	members *etcd.Members
	prefix  string
	dir     string
	o       Options
	ttl     time.Duration
	named   bool // owners have named records
	reader  *Log // see observer
}

// newSite returns a cluster of its own in an etcd.
func newSite(t *testing.T, members *etcd.Members) *site {
	s := &site{T: t, members: members, prefix: fmt.Sprintf("/kv3fs/%x", rand.Uint64()), dir: t.TempDir(), ttl: longLease}
	s.o = Options{Dir: s.dir, DataID: dataID, Period: 100 * time.Millisecond}
	return s
}

// join connects a host.
func (s *site) join(host string, endpoints ...string) *cluster.Cluster {
	s.Helper()
	c, err := s.tryJoin(host, endpoints...)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *site) tryJoin(host string, endpoints ...string) (*cluster.Cluster, error) {
	if len(endpoints) == 0 {
		endpoints = s.members.Endpoints()
	}
	c, err := cluster.Open(context.Background(), cluster.Config{
		Endpoints: endpoints, Prefix: s.prefix, HostID: host, Address: "127.0.0.1:1", Version: "test", LeaseTTL: s.ttl, TLS: s.members.TLS(),
	})
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c, c.Identify(ctx, dataID, false)
}

// observer returns a log that only reads.
func (s *site) observer() *Log {
	s.Helper()
	if s.reader == nil {
		s.reader = &Log{cluster: s.join("observer"), keys: keys{s.prefix}}
	}
	return s.reader
}

// peer is a host's log with its owner.
type peer struct {
	*Log
	site    *site
	cluster *cluster.Cluster
	owner   *owner
	started chan error // what Start returned
	leave   context.CancelFunc
	hung    bool // Close has told so

	cut      atomic.Int64 // the term whose leader it says not to reach
	unlisted bool         // the others do not know of it, as with an etcd that is full
}

// start starts the log of a host, and does not wait until it leads.
func (s *site) start(name string, endpoints ...string) *peer {
	s.Helper()
	return s.startOn(s.join(name, endpoints...))
}

func (s *site) startOn(c *cluster.Cluster) *peer {
	h := s.prepare(c)
	h.run()
	return h
}

// prepare makes the log of a host; run starts it.
func (s *site) prepare(c *cluster.Cluster) *peer {
	o := s.o
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(s.Output(), nil))
	}
	o.Logger = o.Logger.With("host", c.Host().ID)
	h := &peer{Log: New(c, o), site: s, cluster: c, owner: newOwner(), started: make(chan error, 1)}
	h.owner.named = s.named
	return h
}

func (h *peer) run() {
	ctx, cancel := context.WithCancel(context.Background())
	h.leave = cancel
	var wg sync.WaitGroup
	if !h.unlisted {
		wg.Go(func() {
			_ = h.cluster.Announce(ctx, func() cluster.State { // until ctx ends
				is := h.Announced()
				is.Cut = h.cut.Load()
				return is
			})
		})
	}
	wg.Go(func() { h.started <- h.Start(h.owner.hooks()) })
	h.site.Cleanup(func() {
		if err := h.Close(); err != nil && !h.hung {
			h.site.Error(err)
		}
		wg.Wait()
	})
}

// Close also ends what lists the host among the cluster's.
func (h *peer) Close() error {
	if h.leave != nil {
		h.leave()
	}
	return h.Log.Close()
}

// put writes a key as somebody else.
func (s *site) put(key, value string) {
	s.Helper()
	if _, err := s.members.Client().Put(s.Context(), key, value); err != nil {
		s.Fatal(err)
	}
}

// lead starts a host and waits until it leads.
func (s *site) lead(name string, endpoints ...string) *peer {
	s.Helper()
	h := s.start(name, endpoints...)
	h.leads()
	return h
}

// leads waits until the host leads.
func (h *peer) leads() {
	h.site.Helper()
	if err := receive(h.site, "Start returns", h.started); err != nil {
		h.site.Fatal(err)
	}
}

// follow starts a host and waits until it has applied what is there.
func (s *site) follow(name string, endpoints ...string) *peer {
	s.Helper()
	h := s.start(name, endpoints...)
	await(s, name+" is warm", func() bool { return h.State().Warm })
	return h
}

// write appends one write, and waits for its outcome.
func (h *peer) write(recs ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return h.begin(recs...)(ctx)
}

// begin appends one write.
func (h *peer) begin(recs ...string) func(context.Context) error {
	var all [][]byte
	for _, r := range recs {
		all = append(all, []byte(r))
	}
	return h.Append(func(err error) {
		if err == nil {
			h.owner.did(recs...)
		}
	}, all...)
}

func (h *peer) mustWrite(recs ...string) {
	h.site.Helper()
	if err := h.write(recs...); err != nil {
		h.site.Fatal(err)
	}
}

// die leaves the host as kill -9 would, and its election key, too, is gone, as it would be after a while.
func (h *peer) die() {
	h.site.Helper()
	led := h.leaderOf()
	if led == nil {
		h.site.Fatal("it does not lead")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := h.site.members.Client().Delete(ctx, led.term.Key); err != nil {
		h.site.Fatal(err)
	}
}

func (l *Log) leaderOf() *leader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader
}

// applies waits until the host has applied exactly these records.
func (h *peer) applies(recs ...string) {
	h.site.Helper()
	var got []string
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if got = h.owner.all(); slices.Equal(got, recs) {
			return
		}
		if time.Now().After(deadline) {
			h.site.Fatalf("applied %q; want %q; %+v", got, recs, h.State())
		}
	}
}

// owner is the state that a log describes: all its records or, where they have names ("name=value"), the last one of each name.
type owner struct {
	named bool

	mu      sync.Mutex
	recs    []string // without names
	latest  map[string]string
	replays int    // how many records it was given
	missing string // what Missing was told
	resets  int
	refuse  string // Replay refuses this record
	partial bool   // it has forgotten some; set before Start

	replayed func() // called by Replayed; set before Start
}

func newOwner() *owner { return &owner{latest: map[string]string{}, replayed: func() {}} }

func (o *owner) did(recs ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(recs)
}

func (o *owner) add(recs []string) {
	if !o.named {
		o.recs = append(o.recs, recs...)
		return
	}
	for _, r := range recs {
		name, value, _ := strings.Cut(r, "=")
		o.latest[name] = value
	}
}

// all returns the records that give the state.
func (o *owner) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	recs := slices.Clone(o.recs)
	for _, name := range slices.Sorted(maps.Keys(o.latest)) {
		recs = append(recs, name+"="+o.latest[name])
	}
	return recs
}

func (o *owner) hash() uint64 {
	h := sha256.New()
	for _, r := range o.all() {
		fmt.Fprintf(h, "%d %s", len(r), r)
	}
	return binary.LittleEndian.Uint64(h.Sum(nil)) | 1
}

func (o *owner) counts() (replays, resets int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replays, o.resets
}

func (o *owner) told() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missing
}

func (o *owner) hooks() pageservice.LogOwner {
	return pageservice.LogOwner{
		Replay: func(rec []byte) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			if string(rec) == o.refuse {
				return fmt.Errorf("record %q is unknown", rec)
			}
			o.replays++
			o.add([]string{string(rec)})
			return nil
		},
		Snapshot: func(emit func([]byte) error) error {
			for _, r := range o.all() {
				if err := emit([]byte(r)); err != nil {
					return err
				}
			}
			return nil
		},
		StateHash: o.hash,
		Whole:     func() bool { return !o.partial },
		Reset: func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.recs, o.latest = nil, map[string]string{}
			o.resets++
		},
		Missing: func(cause string) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.missing = cause
		},
		Replayed: func() error { o.replayed(); return nil },
		Keep: func(rec []byte) [][]byte {
			o.mu.Lock()
			defer o.mu.Unlock()
			name, value, _ := strings.Cut(string(rec), "=")
			if now, there := o.latest[name]; o.named && (!there || now != value) {
				return nil
			}
			return [][]byte{slices.Clone(rec)}
		},
		LiveBytes: func() int64 {
			n := int64(0)
			for _, r := range o.all() {
				n += int64(len(r))
			}
			return n
		},
	}
}
