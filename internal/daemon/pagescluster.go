package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/pageservice/etcdlog"
	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// PagesCluster says how the hosts of a shared data directory agree on one page index, by etcd.
type PagesCluster struct {
	Store EtcdStore
	// Listen is where other hosts' requests come in, HOST:PORT; Address is how they reach it, if that is another one.
	Listen, Address string
	Token           string // between hosts; "": there are Certificates
	Certificates    forward.Certificates
	Version         string // of kv3fs
}

// EtcdStore is where etcd is.
type EtcdStore struct{ cluster.Config }

// String returns the URL of the store.
func (s EtcdStore) String() string { return "etcd://" + strings.Join(s.Endpoints, ",") + s.Prefix }

const (
	// etcdStart bounds how long a start waits for etcd. The service goes on looking for it, and the mount needs none.
	etcdStart = 5 * time.Second
	// startOverWait bounds a start that an operator has told to begin anew: that is done then, or never. It is longer than a lease of the
	// page files, and than that of a leader.
	startOverWait = 30 * time.Second
	// etcdAgain is how long after a failure with etcd, or with the log in it, it is tried again.
	etcdAgain = time.Second
)

// replica is this host's part of a page service that many hosts share: it follows the leader's log, leads when it is
// elected, and follows again when it has lost that.
type replica struct {
	at     pagesPlace
	p      Pages
	dataID string
	server *httpserver.Server
	client *forward.Client
	alone  bool // see takePages
	files  *pageFiles
	log    *slog.Logger
	pace   logpace.Pace
	done   chan struct{}

	// follows ends when this host may lead no more, because it stops; it goes on forwarding requests.
	follows context.Context
	yielded chan struct{} // closed when it then leads no more

	// Both are nil until etcd has answered.
	cluster   atomic.Pointer[cluster.Cluster]
	etcd      atomic.Pointer[etcdlog.Log]
	watched   watchedSpace
	restarted bool                  // StartOver was done
	seen      atomic.Pointer[inUse] // nil: this host does not lead

	mu      sync.Mutex
	leader  cluster.Leader
	since   time.Duration   // SinceBoot: when leader was told
	last    int64           // the last term of any leader
	changes int64           // how often that has changed
	reign   context.Context // ends when leader changes
	depose  context.CancelFunc
	why     error // why this host cannot lead, or there is no etcd; nil: it is all right
}

// startCluster begins to serve the index of all hosts. Errors are those that no waiting helps against.
func (s *pageService) startCluster(ctx context.Context, at pagesPlace, p Pages, o httpserver.Options, files *pageFiles) (_ *httpserver.Server, err error) {
	r := &replica{at: at, p: p, alone: s.lock != nil, files: files, log: p.Log, done: make(chan struct{})}
	r.reign, r.depose = context.WithCancel(context.Background())
	if r.dataID, err = dataID(at.data); err != nil {
		return nil, err
	}
	if err := makeSharedPages(at.data, p.Log); err != nil {
		return nil, err
	}
	peers, err := r.listen(&s.kept)
	if err != nil {
		return nil, err
	}
	s.listeners = append(s.listeners, peers)
	certs := p.Cluster.Certificates
	me := forward.Identity{Host: at.me.Identity, Cluster: r.dataID + p.Cluster.Store.Prefix, Version: p.Cluster.Version}
	fo := forward.Options{Identity: me, Address: p.Cluster.Store.Address, Token: p.Cluster.Token, Leaders: r, Log: p.Log}
	if certs != (forward.Certificates{}) {
		if peers.TLS, fo.TLS, err = certs.Load(p.Log); err != nil {
			return nil, err
		}
	}
	wait := etcdStart
	if p.StartOver {
		wait = startOverWait
	}
	first, cancel := context.WithTimeout(ctx, cmp.Or(p.etcdStart, wait))
	defer cancel()
	c, err := r.connect(first)
	if err != nil && !r.passes(err) {
		return nil, err
	}
	o.Store = r.state
	o.Registry.MustRegister(newClusterMetrics(r))
	r.server = httpserver.New(nil, o)
	peers.Handler = forward.NewHandler(r.server, forward.HandlerOptions{Identity: me, Token: p.Cluster.Token, Visible: at.visible.answers(), Log: p.Log})
	r.client = forward.New(fo)
	r.server.Switch(httpserver.Source{Leader: r})
	if err != nil {
		r.fails("etcd", err)
	}
	run, end := context.WithCancel(context.Background())
	follows, yield := context.WithCancel(run)
	r.follows, r.yielded = follows, make(chan struct{})
	go func() {
		defer close(r.done)
		r.run(run, c)
	}()
	s.yield = func() {
		yield()
		select {
		case <-r.yielded:
		case <-r.done:
		}
	}
	s.end = func() error {
		yield()
		end()
		<-r.done
		r.client.Close()
		at.visible.close()
		return nil
	}
	return r.server, nil
}

// listen opens the listener for other hosts.
func (r *replica) listen(kept *keptListeners) (*httpserver.Listener, error) {
	c := r.p.Cluster
	l, err := kept.listen(fdstore.Peers, httpserver.Address{Network: "tcp", Where: c.Listen}, r.log)
	if err != nil {
		return nil, fmt.Errorf("--pages-peer-listen, where other hosts' requests come in: %v", err) // not the error of an address for engines, without which a daemon starts
	}
	c.Store.Address = c.Address
	if c.Address == "" {
		c.Store.Address = l.Address.Where
		host, port, _ := net.SplitHostPort(c.Listen)          // Listen has parsed it
		_, given, _ := net.SplitHostPort(l.Address.Where)     // which is a port that was chosen, if none was given
		if ip := net.ParseIP(host); ip == nil && host != "" { // a name stays one: certificates may have it
			c.Store.Address = net.JoinHostPort(host, given)
		} else if host == "" || ip.IsUnspecified() {
			l.Close()
			return nil, fmt.Errorf("other hosts cannot reach address %q: give --pages-peer-address HOST:%s with a name or address of this host", c.Listen, port)
		}
	}
	for _, risk := range c.risks() {
		r.log.Warn(risk)
	}
	c.Store.HostID, c.Store.Version, c.Store.Logger = r.at.me.Identity, c.Version, r.log
	return l, nil
}

// risks returns what is likely to be wrong with the options, although it may be meant.
func (c *PagesCluster) risks() (all []string) {
	if host, _, err := net.SplitHostPort(c.Store.Address); err == nil && isLoopback(host) {
		all = append(all, fmt.Sprintf("other hosts cannot reach this one at %s: if there are any, give --pages-peer-listen or --pages-peer-address an address of this host", c.Store.Address))
	}
	if c.Store.Username != "" && c.Store.TLS == nil && slices.ContainsFunc(c.Store.Endpoints, func(at string) bool {
		host, _, err := net.SplitHostPort(at)
		return err == nil && !isLoopback(host)
	}) {
		all = append(all, "the password for etcd is sent as it is, for whoever can read the network: give --pages-store-ca, which turns TLS on")
	}
	return all
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// passes reports whether an error of etcd, or of who has the page files, may pass by itself. What an operator has asked for is not put
// off: by then hosts may serve that were to be stopped.
func (r *replica) passes(err error) bool {
	for _, passing := range []error{cluster.ErrUnreachable, cluster.ErrNoSpace, cluster.ErrLed, context.DeadlineExceeded, context.Canceled, errOtherPages} {
		if errors.Is(err, passing) {
			return !r.p.StartOver
		}
	}
	return false
}

// connect connects to etcd and makes sure that the prefix is this data directory's.
func (r *replica) connect(ctx context.Context) (*cluster.Cluster, error) {
	c, err := cluster.Open(ctx, r.p.Cluster.Store.Config)
	if err != nil {
		return nil, err
	}
	if err := r.identify(ctx, c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// identify makes sure that the prefix is this data directory's, and that its page files are handed out from there.
func (r *replica) identify(ctx context.Context, c *cluster.Cluster) error {
	if !r.startOver() {
		was, err := readPagesOwner(r.at.data)
		if err != nil {
			return err
		}
		if was.prefix() == c.Prefix() && was.Index != "" {
			if err := c.Identify(ctx, r.dataID, true); err != nil {
				return err
			}
			if was.Index == c.ID() {
				return nil
			}
			// Another host may be just about to note what it is now.
		}
	}
	right, err := takePages(ctx, r.at.data, r.at.me, r.alone, pagesLeasePeriod, r.log)
	if err != nil {
		return err
	}
	defer func() {
		if err := right.end(); err != nil {
			r.log.Warn("cannot give the lease of the page service back", "err", err)
		}
	}()
	was, begun, err := r.claim(ctx, c)
	if err != nil {
		return err
	}
	next := pagesOwner{Store: r.p.Cluster.Store.String(), Index: c.ID(), Promises: was.Promises, Moved: was.Moved}
	if begun {
		next.Promises, next.Moved = was.relied(), true
	}
	next.Promises = next.Promises.And(r.p.Index.WithDefaults().Promises())
	if err := right.note(next); err != nil {
		return err
	}
	r.restarted = true
	return nil
}

// startOver reports whether an operator's wish is still to be done.
func (r *replica) startOver() bool { return r.p.StartOver && !r.restarted }

// claim finds out which cluster it is, which begins anew where another index has handed out the pages. Nobody else does that meanwhile. It returns what
// was noted, and whether it has begun anew.
func (r *replica) claim(ctx context.Context, c *cluster.Cluster) (was pagesOwner, begun bool, err error) {
	was, err = readPagesOwner(r.at.data)
	switch prefix := was.prefix(); {
	case r.startOver() && (err == nil || errors.Is(err, errUnreadableOwner)):
		return was, true, c.StartOver(ctx, r.dataID, "an operator has decided to begin anew")
	case err != nil:
		return was, false, err
	case prefix == "":
		before := was.handedOut(r.at.data)
		err := c.StartOver(ctx, r.dataID, before)
		if errors.Is(err, cluster.ErrLed) && was.Store == "" {
			return was, false, c.Identify(ctx, r.dataID, false) // it is in use, and only the note of that has gone
		}
		return was, before != "", err
	case prefix != c.Prefix():
		return was, false, r.elsewhere(was)
	}
	if err := c.Identify(ctx, r.dataID, true); err != nil {
		return was, false, err
	}
	if was.Index != "" && was.Index != c.ID() {
		return was, false, r.another(was, c)
	}
	return was, false, nil
}

// run connects to etcd, if c is nil, and then follows, leads, loses and follows until ctx ends.
func (r *replica) run(ctx context.Context, c *cluster.Cluster) {
	for err := error(nil); c == nil && r.follows.Err() == nil; {
		if c, err = r.connect(r.follows); err != nil {
			r.fails("etcd", err)
			pause(r.follows, etcdAgain)
		}
	}
	if c != nil {
		r.serve(ctx, c)
		r.cluster.Store(nil)
		if err := c.Close(); err != nil {
			r.log.Warn("close the connection to etcd", "err", err)
		}
	}
}

// serve follows and leads with a connection to etcd, until ctx ends.
func (r *replica) serve(ctx context.Context, c *cluster.Cluster) {
	r.cluster.Store(c)
	r.setWhy(nil)
	var around sync.WaitGroup
	defer around.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	around.Go(func() { _ = c.WatchLeader(ctx, r.noteLeader) }) // ends with ctx
	around.Go(func() { _ = c.Announce(ctx, r.announced) })     // likewise
	around.Go(func() { r.checkVisibility(ctx, c) })
	for r.follows.Err() == nil {
		if err := r.turn(r.follows, c); err != nil && r.follows.Err() == nil {
			r.etcd.Store(nil)
			r.fails("log", err)
			pause(r.follows, etcdAgain)
		}
	}
	r.etcd.Store(nil) // the others do not count on it while it drains
	close(r.yielded)
	<-ctx.Done()
}

// turn follows until this host leads, and then leads until it does no more.
func (r *replica) turn(ctx context.Context, c *cluster.Cluster) error {
	// A host that cannot read the note cannot lead: elected, it would only keep the others from it.
	is, err := readPagesOwner(r.at.data)
	switch {
	case err != nil:
		return err
	case is.Store != "" && is.prefix() != c.Prefix():
		return r.elsewhere(is)
	}
	promised, err := etcdlog.Recorded(ctx, c)
	if err != nil {
		return err
	}
	if is.Moved {
		promised = promised.And(is.Promises)
	}
	mine := r.p.Index.WithDefaults()
	l := etcdlog.New(c, etcdlog.Options{
		Dir: sharedPages(r.at.data), DataID: r.dataID, Logger: r.log,
		Stand:    func(ctx context.Context) error { return r.stand(ctx, c) },
		Promises: mine.Promises(), Promised: promised, World: mine.World,
	})
	r.etcd.Store(l)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Start returns then
	// Another index may have been in use before, whose host answers until it has seen the note.
	handover := max(c.LeaseTTL(), movedHandover)
	x, err := index.Open(l, index.Options{Options: r.p.Index, Logger: r.log, Handover: handover, Promised: promised})
	if !stop() && err == nil {
		return x.Close()
	}
	if errors.Is(err, etcdlog.ErrPromises) {
		return nil // the next turn knows of that
	}
	if err != nil {
		return err
	}
	seen := r.watchInUse(c, promised, settled(r.p.Index, promised, handover))
	defer seen.end() // last, since it reads a directory that may hang
	most := unseenTerms * c.LeaseTTL()
	why := seen.await(ctx, seen.first, most)
	if errors.Is(why, errUnkept) {
		return x.Close() // the next turn keeps it
	}
	if why == nil && ctx.Err() == nil {
		why = r.lead(ctx, l, x, seen, most)
	}
	r.etcd.Store(nil) // nobody counts on it while the directory hangs
	return errors.Join(why, x.Close())
}

// lead has this host answer until it may do so no more, and returns why if that is not because another one leads.
func (r *replica) lead(ctx context.Context, l *etcdlog.Log, x *index.Index, seen *inUse, most time.Duration) error {
	endFiles, err := r.files.serve(x)
	if err != nil {
		return err
	}
	defer endFiles()
	r.setWhy(nil)
	r.log.Info("this host leads the page service", "store", r.p.Cluster.Store.String())
	r.seen.Store(seen)
	defer r.seen.Store(nil)
	r.server.Switch(httpserver.Source{Index: x, Valid: func() bool { return l.Valid() && seen.valid() }})
	defer r.server.Switch(httpserver.Source{Leader: r})
	why := seen.await(ctx, l.Lost(), most)
	if why == nil && ctx.Err() == nil {
		r.log.Warn("another host leads the page service now, or will: requests go there")
	}
	return why
}

// fails notes why this host has no etcd, or cannot lead.
func (r *replica) fails(what string, err error) {
	r.setWhy(err)
	if more, now := r.pace.Log(what + err.Error()); now {
		r.log.Error("this host cannot lead the page service; it tries again", "err", err, "more", more)
	}
}

func (r *replica) setWhy(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = err
}

// noteLeader is called when another host leads.
func (r *replica) noteLeader(l cluster.Leader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader, r.since = l, host.SinceBoot()
	if l.Revision != 0 {
		if r.last != 0 {
			r.changes++
		}
		r.last = l.Revision
	}
	r.depose()
	r.reign, r.depose = context.WithCancel(context.Background())
}

// Leader implements forward.Leaders.
func (r *replica) Leader() (forward.Target, context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return forward.Target{Host: r.leader.ID, Address: r.leader.Address}, r.reign
}

// Forward implements httpserver.Forwarder.
func (r *replica) Forward(ctx context.Context, q httpserver.Forwarded) (httpserver.Answer, error) {
	a, err := r.client.Forward(ctx, q)
	if errors.Is(err, forward.ErrNoLeader) || errors.Is(err, forward.ErrMine) {
		if why := r.reason(); why != nil {
			err = why
		}
	}
	return a, err
}

// reason returns why this host cannot lead; nil: nothing is wrong, as far as is known.
func (r *replica) reason() error {
	r.mu.Lock()
	why := r.why
	r.mu.Unlock()
	if l := r.etcd.Load(); l != nil {
		switch is := l.State(); {
		case is.Warm: // whatever was wrong before
			why = nil
		case why == nil && is.Reason != "":
			why = errors.New(is.Reason)
		}
	}
	return why
}

// announced is what other hosts are told of this one.
func (r *replica) announced() cluster.State {
	l := r.etcd.Load()
	if l == nil {
		return cluster.State{}
	}
	is := l.Announced()
	if is.Role == string(etcdlog.Following) && r.client.State() != nil {
		r.mu.Lock()
		is.Cut = r.leader.Revision
		r.mu.Unlock()
	}
	return is
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
