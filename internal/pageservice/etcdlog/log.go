// Package etcdlog keeps the log of a page index in etcd, so that the indices of several hosts agree. One host
// leads and appends; the others follow, and each of them can lead at once.
//
// # Append
//
// The log is a row of batches with dense indices, each with the chain of hashes up to it (batch.go). A batch is appended by one
// transaction that compares the leader's election key and the revision of the head (append.go). So nobody
// appends who does not lead, nothing is appended twice, and nothing is appended to a log other than the
// appender has seen. An append whose outcome is unclear is sent again, unchanged, until it is clear: it can succeed only once.
// It compares a gate, too, which is deleted before a write is called undone: even a full etcd grants that.
//
// # Follow
//
// A log that is being started follows (follow.go): it loads a snapshot, then applies batches as they come. A watch only says
// when to look; what there is, the head and the indices say. When the host is elected it applies
// everything, and appends a batch that says so under the same comparisons (lead.go): it cannot succeed if anything is missing.
//
// # Length
//
// Where there are followers, the leader names one of them, in the log, to take a snapshot at that place, looks at what
// it has written, and drops what is before the older of two snapshots (snapshots.go). Where there are none, it rewrites what
// is needed of the oldest records (compact.go).
package etcdlog

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/queue"
)

// Options are the options of a log. Zeros select the defaults.
type Options struct {
	// Dir is a directory that all hosts share, for snapshots and the mark.
	Dir string
	// DataID names the data directory, as in cluster.Identify.
	DataID string

	// Promises is what this host's owner promises to clients, and Promised what Recorded has returned: the owner keeps that, too.
	// World is for how many ranks the owner waits until a key is complete.
	Promises, Promised pageservice.Promises
	World              int

	// SnapshotBytes is after how many bytes of log there is a new snapshot, at least; 64 MiB. Half of the state is
	// the least, too. Without followers, the log may have so many bytes beside twice what is needed.
	SnapshotBytes int64
	// History is for how long what was dropped can still be read in etcd; 5 minutes.
	History time.Duration
	// Period is how often etcd is looked at, where nothing says that something has changed; 1 s.
	Period time.Duration

	// Stand returns why this host should not lead, although it could; nil: it may. It is asked once in a Period, and must not take long.
	// nil: it always may.
	Stand func(context.Context) error

	Logger *slog.Logger
}

// Log is a pageservice.Log in etcd.
type Log struct {
	cluster *cluster.Cluster
	o       Options
	keys    keys
	by      writer
	owner   pageservice.LogOwner
	queue   *queue.Queue

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // what Start has started, and Start itself
	once    sync.Once      // of Close
	closing error          // of Close
	fewer   atomic.Int64   // how often fetchBatches is halved
	lost    chan struct{}

	mu     sync.Mutex
	closed bool
	state  State
	leader *leader // nil until Start has returned
	room   error
}

var _ pageservice.Log = (*Log)(nil)

// New returns the log of a cluster, which was identified. The log does not close the cluster.
func New(c *cluster.Cluster, o Options) *Log {
	if o.SnapshotBytes == 0 {
		o.SnapshotBytes = 64 << 20
	}
	if o.History == 0 {
		o.History = 5 * time.Minute
	}
	if o.Period == 0 {
		o.Period = time.Second
	}
	if o.Stand == nil {
		o.Stand = func(context.Context) error { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		cluster: c, o: o, keys: keys{c.Prefix()}, by: writer{c.Host().ID, c.Host().Version},
		queue: queue.New(), lost: make(chan struct{}), state: State{Role: Following},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// SizeBytes implements pageservice.Log. Nobody knows how much will be read until this host leads.
func (l *Log) SizeBytes() int64 { return 0 }

// Start implements pageservice.Log.
func (l *Log) Start(owner pageservice.LogOwner) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return pageservice.ErrClosed
	}
	l.owner = owner
	l.running.Add(1)
	l.mu.Unlock()
	defer l.running.Done()
	led, err := newFollower(l).run(l.ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.resign(led.term)
		return pageservice.ErrClosed
	}
	defer l.mu.Unlock()
	l.leader = led
	l.running.Go(led.run)
	l.running.Go(led.await)
	l.running.Go(led.mark)
	l.running.Go(led.look)
	return nil
}

// Append implements pageservice.Log. Once another host may lead, the outcome is ErrDemoted.
func (l *Log) Append(done func(error), recs ...[]byte) (wait func(context.Context) error) {
	return l.queue.Append(done, recs)
}

// Close implements pageservice.Log. Another host can lead at once, unless etcd does not answer. An error says that a call of
// the shared directory hangs, and with it a goroutine of this log, which touches nothing any more when it goes on.
func (l *Log) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		led := l.leader
		l.mu.Unlock()
		l.queue.Close()
		if led != nil {
			led.finish()
		}
		l.cancel()
		ended := make(chan struct{})
		go func() { // ends with what it waits for
			l.running.Wait()
			close(ended)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), leadTerms*l.cluster.LeaseTTL())
		defer cancel()
		select {
		case <-ended:
		case <-ctx.Done():
			l.closing = fmt.Errorf("page log: %s: a call of this directory does not return", l.o.Dir)
		}
	})
	return l.closing
}

// Lost is closed when this host has led and another host may lead now. The owner closes the log then.
func (l *Log) Lost() <-chan struct{} { return l.lost }

// Valid reports whether this host leads and may answer from memory now. It asks nobody.
func (l *Log) Valid() bool {
	l.mu.Lock()
	led := l.leader
	l.mu.Unlock()
	return led != nil && led.valid()
}

// Room returns nil, or why nothing new may be stored now: an ErrUnavailable that says how full etcd is. What is needed to
// keep the index true may be written nevertheless.
func (l *Log) Room() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room
}

func (l *Log) snapshotDir() string { return filepath.Join(l.o.Dir, "snapshots") }

// call bounds one request to etcd.
func (l *Log) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.cluster.LeaseTTL()/2)
}

// retryPause keeps requests that fail at once from being a flood.
const retryPause = 100 * time.Millisecond

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
