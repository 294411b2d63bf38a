package pagesbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// HostsOptions say how the page services of several hosts are compared. The zero value of a
// field means its default.
type HostsOptions struct {
	URLs    []string      // of services that share one index, the leader's first; two or more
	Batch   int           // keys of a request; default 512
	Pages   int           // of the rank; default 1<<17
	Runs    int           // default 5
	RunTime time.Duration // of each run; default 1 s

	// Failover is a command that ends the leader; none: nothing is ended. After it, the last of the
	// services must have answered for Calm without an error, longer than an election takes; default 10 s.
	Failover []string
	Calm     time.Duration
}

// HostsReport is what was measured.
type HostsReport struct {
	Batch    int           `json:"batch"`
	Services []HostService `json:"services"`
	Failover *Failover     `json:"failover,omitempty"`
}

// HostService is how long one client waits for the service of a host.
type HostService struct {
	URL           string  `json:"url"`
	Exists        Latency `json:"exists"`
	Store         Latency `json:"allocate_confirm"`
	KeysPerSecond float64 `json:"keys_stored_per_s"` // by one client
	ToLeader      float64 `json:"exists_p50_to_leader"`
}

// Failover is for how long the last of the services answered nothing while the leader ended.
type Failover struct {
	URL      string  `json:"url"`
	ExistsMs float64 `json:"longest_without_exists_ms"`
	StoreMs  float64 `json:"longest_without_allocate_confirm_ms"`
	Errors   int     `json:"errors"` // that clients have seen
}

// hostsPath begins the namespace that is used where a URL has none, so that engines keep theirs. Each
// run has one of its own: in a full one, with keys that are protected, new keys would go first.
const hostsPath = "/ns/kv3fs-bench-hosts-"

// failoverLimit bounds how long a failover may take.
const failoverLimit = time.Minute

func (o *HostsOptions) targets() (all []target, err error) {
	if len(o.URLs) < 2 {
		return nil, fmt.Errorf("bench: %d page services; give the URLs of two or more, the leader's first", len(o.URLs))
	}
	own := fmt.Sprintf("%s%08x", hostsPath, rand.Uint32())
	for _, u := range o.URLs {
		one := Options{URL: u}
		to, err := one.urlTarget()
		if err != nil {
			return nil, err
		}
		if to.prefix == "" {
			to.prefix = own
		}
		all = append(all, to)
	}
	return all, nil
}

func (o *HostsOptions) fillDefaults() {
	if o.Batch == 0 {
		o.Batch = 512
	}
	if o.Pages == 0 {
		o.Pages = 1 << 17
	}
	if o.Runs == 0 {
		o.Runs = 5
	}
	if o.RunTime == 0 {
		o.RunTime = time.Second
	}
	if o.Calm == 0 {
		o.Calm = 10 * time.Second
	}
}

// Hosts compares the page services of hosts that share one index: each is asked in turn, by one
// client. Then it runs the command that ends the leader, if there is one.
func Hosts(ctx context.Context, o HostsOptions) (rep *HostsReport, err error) {
	o.fillDefaults()
	targets, err := o.targets()
	if err != nil {
		return nil, err
	}
	d := vllmDialect()
	d.salt = rand.Uint64()
	known, err := populate(ctx, d, targets[0], o, max(o.Pages/16, o.Batch))
	if err != nil {
		return nil, fmt.Errorf("bench: page service %s: %w", o.URLs[0], err)
	}
	clients := make([]*client, len(targets))
	defer func() {
		for _, c := range clients {
			if c != nil {
				_ = c.conn.close()
			}
		}
	}()
	for i, to := range targets {
		if clients[i], err = newClient(d, to, i, o.Batch, known); err == nil {
			err = clients[i].follow(ctx, uint64(len(known)-o.Batch))
		}
		if err != nil {
			return nil, fmt.Errorf("bench: page service %s: %w", o.URLs[i], err)
		}
	}
	last := len(targets) - 1
	defer func() { err = errors.Join(err, forget(d, targets[last])) }()
	rep, err = compare(ctx, o, clients)
	if err != nil || len(o.Failover) == 0 {
		return rep, err
	}
	rep.Failover, err = failover(ctx, d, targets, o)
	if rep.Failover != nil {
		rep.Failover.URL = o.URLs[last]
	}
	return rep, err
}

// forget removes all keys of the benchmark's namespace.
func forget(d dialect, to target) error {
	c, err := newClient(d, to, 0, 1, nil)
	if err != nil {
		return fmt.Errorf("bench: page service: %w", err)
	}
	if err = c.conn.until(time.Now().Add(answerLimit)); err == nil {
		err = c.clear()
	}
	return errors.Join(err, c.conn.close())
}

// populate stores n keys and returns their pages.
func populate(ctx context.Context, d dialect, to target, o HostsOptions, n int) (known []int64, err error) {
	c, err := newClient(d, to, len(o.URLs), o.Batch, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.conn.close()) }()
	if err := c.conn.until(time.Now().Add(populateLimit)); err != nil {
		return nil, err
	}
	if err := c.initialize(int64(o.Pages)); err != nil {
		return nil, err
	}
	for len(known) < n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stored, err := c.store(uint64(len(known)))
		if err != nil {
			return nil, err
		}
		known = append(known, stored...)
	}
	return known, nil
}

// follow waits until the service has the batch of keys from first on.
func (c *client) follow(ctx context.Context, first uint64) error {
	end := time.Now().Add(answerLimit)
	if err := c.conn.until(end.Add(answerLimit)); err != nil {
		return err
	}
	for {
		err := c.find(first)
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // it says nothing when it has caught up
	}
}

// compare lets the services take turns.
func compare(ctx context.Context, o HostsOptions, clients []*client) (*HostsReport, error) {
	exists, stores := make([][]time.Duration, len(clients)), make([][]time.Duration, len(clients))
	order := make([]int, len(clients))
	for i := range order {
		order[i] = i
	}
	err := measure.Turns(ctx, measure.Rounds{Runs: o.Runs, RunTime: o.RunTime}, order, func(ctx context.Context, i int, turn measure.Turn) error {
		c := clients[i]
		if err := c.conn.until(time.Now().Add(turn.Time + answerLimit)); err != nil {
			return err
		}
		for _, of := range []struct {
			waits *[]time.Duration
			do    func() error
		}{{&exists[i], c.askExists}, {&stores[i], c.allocateAndConfirm}} {
			for end := time.Now().Add(turn.Time / 2); time.Now().Before(end) && ctx.Err() == nil; {
				began := time.Now()
				if err := of.do(); err != nil {
					return fmt.Errorf("bench: page service %s: %w", o.URLs[i], err)
				}
				if turn.Counts() {
					*of.waits = append(*of.waits, time.Since(began))
				}
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	rep := &HostsReport{Batch: o.Batch}
	for i := range clients {
		var sum time.Duration
		for _, w := range stores[i] {
			sum += w
		}
		s := HostService{URL: o.URLs[i], Exists: latencyOf(exists[i]), Store: latencyOf(stores[i])}
		if sum > 0 {
			s.KeysPerSecond = float64(len(stores[i])*o.Batch) / sum.Seconds()
		}
		if i > 0 && rep.Services[0].Exists.P50Ms > 0 {
			s.ToLeader = s.Exists.P50Ms / rep.Services[0].Exists.P50Ms
		}
		rep.Services = append(rep.Services, s)
	}
	return rep, nil
}

// failoverBatch is how many keys the clients of a failover ask for, every failoverPause: so few
// that pages are free all the time, as a new leader protects all keys that it finds.
const (
	failoverBatch = 16
	failoverPause = 10 * time.Millisecond
)

// failover runs the command while two clients ask the last service, in a namespace that is nearly
// empty.
func failover(ctx context.Context, d dialect, targets []target, o HostsOptions) (_ *Failover, err error) {
	for i := range targets {
		targets[i].prefix += "-failover"
	}
	to := targets[len(targets)-1]
	o.Batch = failoverBatch
	o.Pages = max(o.Pages, 1<<17)
	known, err := populate(ctx, d, targets[0], o, failoverBatch)
	if err != nil {
		return nil, fmt.Errorf("bench: page service %s: %w", o.URLs[0], err)
	}
	defer func() { err = errors.Join(err, forget(d, to)) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asking sync.WaitGroup
	watches := []*watch{
		{do: (*client).askExists, answered: make(chan struct{}, 1)},
		{do: (*client).allocateAndConfirm, answered: make(chan struct{}, 1)},
	}
	for i, w := range watches {
		asking.Go(func() { w.run(ctx, d, to, 100+i, o.Batch, known) })
	}
	defer asking.Wait()
	defer cancel()
	for _, w := range watches {
		if err := w.next(ctx); err != nil {
			return nil, err
		}
	}
	for _, w := range watches {
		w.begin()
	}
	if out, err := exec.CommandContext(ctx, o.Failover[0], o.Failover[1:]...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bench: --failover-command: %w: %.400s", err, out)
	}
	end := time.Now().Add(failoverLimit)
	for {
		pause := time.NewTimer(100 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		}
		if watches[0].calm(o.Calm) && watches[1].calm(o.Calm) {
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("bench: %s has failed again and again for %v after the leader ended: %w", to.address, failoverLimit, errors.Join(watches[0].reason(), watches[1].reason()))
		}
	}
	cancel()
	asking.Wait()
	return &Failover{
		ExistsMs: milliseconds(watches[0].longest), StoreMs: milliseconds(watches[1].longest), Errors: watches[0].errors + watches[1].errors,
	}, nil
}

// watch asks one kind of request again and again, and knows the longest time without an answer.
type watch struct {
	do       func(*client) error
	answered chan struct{} // holds a token after the first answer

	mu      sync.Mutex
	since   time.Time // when this began: begin, or the last error
	last    time.Time // of the last answer
	longest time.Duration
	errors  int
	why     error // of the last one
}

func (w *watch) next(ctx context.Context) error {
	patience := time.NewTimer(answerLimit)
	defer patience.Stop()
	select {
	case <-w.answered:
		return nil
	case <-patience.C:
		return errors.New("bench: the service does not answer before the leader is ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.last, w.longest, w.errors = time.Now(), time.Now(), 0, 0
}

// calm reports whether it has been answered without an error for so long.
func (w *watch) calm(d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.since) > d && time.Since(w.last) < d
}

// reason returns the last error.
func (w *watch) reason() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

func (w *watch) run(ctx context.Context, d dialect, to target, number, batch int, known []int64) {
	var c *client
	for ctx.Err() == nil {
		err := error(nil)
		if c == nil {
			if c, err = newClient(d, to, number+int(rand.Uint32N(1<<16)), batch, known); err != nil {
				c = nil
			}
		}
		if err == nil {
			if err = c.conn.until(time.Now().Add(2 * time.Second)); err == nil {
				err = w.do(c)
			}
		}
		now := time.Now()
		w.mu.Lock()
		if err == nil {
			if !w.last.IsZero() {
				w.longest = max(w.longest, now.Sub(w.last))
			}
			w.last = now
			select {
			case w.answered <- struct{}{}:
			default:
			}
		} else {
			w.since = now
			w.errors++
			w.why = err
		}
		w.mu.Unlock()
		if err != nil && c != nil {
			_ = c.conn.close()
			c = nil
		}
		pause := time.NewTimer(failoverPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
	if c != nil {
		_ = c.conn.close()
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
