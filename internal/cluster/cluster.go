package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Errors of a Cluster, beside those of contexts and of etcd's client.
var (
	// ErrUnreachable: no member of etcd answers, or none of those that do reaches the others. It may pass.
	ErrUnreachable = errors.New("etcd does not answer")
	// ErrOtherCluster: the prefix belongs to another data directory.
	ErrOtherCluster = errors.New("the etcd prefix belongs to another data directory")
	// ErrEmptied: etcd has forgotten a cluster that was there.
	ErrEmptied = errors.New("etcd has lost this cluster")
	// ErrNewer: a newer kv3fs has written what this one cannot read.
	ErrNewer = errors.New("written by a newer kv3fs")
	// ErrLed: a host leads the cluster, and so it is not begun anew.
	ErrLed = errors.New("the page service is led")
	// ErrLost: this host leads no more.
	ErrLost = errors.New("this host leads no more")
	// ErrNoSpace: etcd is out of space, and grants no lease and takes no write until it is given some.
	ErrNoSpace = errors.New("etcd is out of space")
)

const (
	// A server cuts off whoever pings more often than every 5 s, or, unless it is told otherwise, pings at all while nothing is
	// asked. So idle connections have no pings; that they are dead shows in avoidSick.
	pingPeriod  = 10 * time.Second
	pingTimeout = 3 * time.Second
	// openTimeout bounds Open.
	openTimeout = 10 * time.Second
)

// Cluster is this host's connection to its cluster. Its methods may be called concurrently.
type Cluster struct {
	config  Config
	client  *clientv3.Client
	members []*member

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	id, before string        // of the cluster, see Identify
	rest       time.Duration // the last one, see Rest
	restUntil  time.Duration // SinceBoot
}

// Open connects to etcd, and returns once a member answers that reaches the others. It logs known faults of the versions it
// finds. It takes some 10 s at most; after ErrUnreachable, the same call may succeed later.
func Open(ctx context.Context, config Config) (*Cluster, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	c, err := open(ctx, config)
	if err != nil {
		err = fmt.Errorf("etcd at %s: %w", strings.Join(config.Endpoints, ", "), err)
	}
	if errors.Is(err, ErrUnreachable) {
		if why := diagnose(config); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
	}
	return c, err
}

func open(ctx context.Context, config Config) (_ *Cluster, err error) {
	ctx, cancelOpen := context.WithTimeout(ctx, openTimeout)
	defer cancelOpen()
	c := &Cluster{config: config}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.client, err = clientv3.New(clientv3.Config{
		Endpoints:            endpointURLs(config),
		DialTimeout:          openTimeout / 2,
		DialKeepAliveTime:    pingPeriod,
		DialKeepAliveTimeout: pingTimeout,
		TLS:                  config.TLS,
		Username:             config.Username,
		Password:             config.Password,
		Logger:               zap.NewNop(), // errors are returned, too
	})
	if err != nil {
		c.cancel()
		return nil, explain(err)
	}
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.warnOfFaults(ctx)
	// The client begins to resolve its endpoints with its first request, and that races with a change of them.
	c.client.ActiveConnection().Connect()
	c.wg.Go(c.avoidSick)
	return c, nil
}

// warnOfFaults logs what is known to be wrong with the versions of etcd.
func (c *Cluster) warnOfFaults(ctx context.Context) {
	told := map[string]bool{}
	for _, m := range c.Space(ctx) {
		if m.Err != nil || told[m.Version] {
			continue
		}
		told[m.Version] = true
		faults, err := KnownFaults(m.Version)
		if err != nil {
			c.config.Logger.Warn("unknown version of etcd", "member", m.Endpoint, "err", err)
		} else if len(faults) > 0 {
			c.config.Logger.Warn("etcd has known faults", "version", m.Version, "faults", strings.Join(faults, "; "), "use", Recommended)
		}
	}
}

// endpointURLs gives each endpoint the scheme that makes the client use TLS, or not.
func endpointURLs(config Config) []string {
	scheme := "http://"
	if config.TLS != nil {
		scheme = "https://"
	}
	urls := make([]string, len(config.Endpoints))
	for i, e := range config.Endpoints {
		urls[i] = scheme + e
	}
	return urls
}

// Client returns the client of etcd, for keys below Prefix. It stops using members that are sick. Every call needs a deadline.
func (c *Cluster) Client() *clientv3.Client { return c.client }

// Prefix returns what all keys begin with, without a slash at its end.
func (c *Cluster) Prefix() string { return c.config.Prefix }

// Host returns the record of this host.
func (c *Cluster) Host() Host {
	return Host{ID: c.config.HostID, Address: c.config.Address, Version: c.config.Version}
}

// LeaseTTL returns how long the cluster waits for a leader that has died.
func (c *Cluster) LeaseTTL() time.Duration { return c.config.LeaseTTL }

// Close ends the connection, and all terms. It deletes nothing in etcd: without Term.Resign, the others wait
// for the lease as if this host had died.
func (c *Cluster) Close() error {
	c.cancel()
	c.wg.Wait()
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.conn.Close())
	}
	if err := c.client.Close(); !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Cluster) key(parts ...string) string {
	return c.config.Prefix + "/" + strings.Join(parts, "/")
}

// attempt bounds one request to etcd. Three fit into a lease.
func (c *Cluster) attempt() time.Duration { return c.config.LeaseTTL / 5 }

// pause waits, or until ctx ends or the cluster is closed.
func (c *Cluster) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return errClosed
	}
}

var errClosed = errors.New("the connection to etcd is closed")

// persist repeats a request that may be repeated until it is answered, or says what no repetition
// helps against.
func (c *Cluster) persist(ctx context.Context, do func(context.Context) error) error {
	var last error // that says more than that time was up
	for {
		once, cancel := context.WithTimeout(ctx, c.attempt())
		err := do(once)
		cancel()
		if err == nil || !transient(err) {
			return explain(err)
		}
		if last == nil || !isTimeout(err) {
			last = err
		}
		if ended := c.pause(ctx, retryPause); ended != nil {
			return fmt.Errorf("%w: %w", explain(last), ended)
		}
	}
}

// retryPause keeps requests that fail at once from being a flood.
const retryPause = 100 * time.Millisecond
