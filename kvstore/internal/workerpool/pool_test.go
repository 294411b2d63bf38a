package workerpool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// outcomes records how jobs were settled.
type outcomes struct {
	mu  sync.Mutex
	all map[string]error
	ran []string
}

func (o *outcomes) job(ctx context.Context, name string, run func()) Job {
	return Job{
		Context: ctx,
		Run: func() {
			o.mu.Lock()
			o.ran = append(o.ran, name)
			o.mu.Unlock()
			run()
		},
		Done: func(err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.all == nil {
				o.all = map[string]error{}
			}
			if _, twice := o.all[name]; twice {
				panic(name + " settled twice")
			}
			o.all[name] = err
		},
	}
}

func (o *outcomes) want(t *testing.T, name string, want error) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if got, settled := o.all[name]; !settled || !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("%s: settled %v with %v; want %v", name, settled, got, want)
	}
}

func (o *outcomes) settled() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

func nothing() {}

func TestRunsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(1, time.Second)
		for _, name := range []string{"a", "b", "c"} {
			c.Go(o.job(t.Context(), name, nothing))
		}
		synctest.Wait()
		if !slices.Equal(o.ran, []string{"a", "b", "c"}) {
			t.Error(o.ran)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		c.Go(o.job(t.Context(), "d", nothing))
		o.want(t, "a", nil)
		o.want(t, "d", kv.ErrClosed)
	})
}

// A job that hangs is given up when its time is over, and the others go on. Late is
// called when it returns after all.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		release, late := make(chan struct{}), make(chan struct{})
		stuck := o.job(t.Context(), "stuck", func() { <-release })
		stuck.Late = func() { close(late) }
		c.Go(stuck)
		c.Go(o.job(t.Context(), "slow", func() { time.Sleep(900 * time.Millisecond) }))
		c.Go(o.job(t.Context(), "next", nothing))
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		o.want(t, "slow", nil)
		o.want(t, "next", nil)
		if n := o.settled(); n != 2 {
			t.Errorf("%d settled: given up too early", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		o.want(t, "stuck", ErrOverdue)
		if err := c.Close(); !errors.Is(err, ErrOverdue) {
			t.Errorf("closed: %v", err)
		}
		close(release)
		<-late
	})
}

// While all goroutines hang, nothing waits behind them.
func TestAllHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		release := make(chan struct{})
		for _, name := range []string{"one", "two"} {
			c.Go(o.job(t.Context(), name, func() { <-release }))
		}
		time.Sleep(time.Second / 2)
		c.Go(o.job(t.Context(), "behind", nothing))
		time.Sleep(time.Second / 2)
		synctest.Wait()
		c.Go(o.job(t.Context(), "after", nothing))
		o.want(t, "one", ErrOverdue)
		o.want(t, "behind", kv.ErrTimeout)
		o.want(t, "after", kv.ErrTimeout)

		close(release)
		synctest.Wait()
		c.Go(o.job(t.Context(), "again", nothing))
		synctest.Wait()
		o.want(t, "again", nil)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(1, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		c.Go(o.job(t.Context(), "first", func() { time.Sleep(900 * time.Millisecond) }))
		c.Go(o.job(ctx, "cancelled", nothing))
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		o.want(t, "first", nil)
		o.want(t, "cancelled", context.Canceled)
		if len(o.ran) != 1 {
			t.Errorf("ran: %q", o.ran)
		}
		c.Go(o.job(t.Context(), "last", func() { time.Sleep(time.Second / 2) }))
		c.Go(o.job(t.Context(), "closed", nothing))
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		o.want(t, "last", nil)
		o.want(t, "closed", kv.ErrClosed)
	})
}

// recorder records which pieces were done.
type recorder struct {
	mu   sync.Mutex
	done []int
}

func (r *recorder) Do(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, i)
}

// A pool without a timeout does pieces in order, also where they come piece by piece and
// in between jobs, and lets a job take as long as it takes.
func TestPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1, 0)
		begin := make(chan struct{})
		p.Go(Job{Run: func() { <-begin }})
		var first, second recorder
		p.Each(&first, 0, 5, 2)
		p.Each(&first, 5, 7, 2)
		p.Each(&second, 3, 4, 2)
		p.Each(&first, 7, 8, 2)
		var o outcomes
		p.Go(o.job(t.Context(), "job", func() { time.Sleep(time.Hour) }))
		close(begin)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if !slices.Equal(first.done, []int{0, 1, 2, 3, 4, 5, 6, 7}) || !slices.Equal(second.done, []int{3}) {
			t.Errorf("done: %v, %v", first.done, second.done)
		}
		o.want(t, "job", nil)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Several goroutines share what is queued, and every piece is done once.
func TestPiecesAreShared(t *testing.T) {
	const pieces = 1000
	p := New(4, 0)
	var all recorder
	for low := 0; low < pieces; low += 10 {
		p.Each(&all, low, low+10, 3)
	}
	for {
		all.mu.Lock()
		n := len(all.done)
		all.mu.Unlock()
		if n == pieces {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	slices.Sort(all.done)
	for i, piece := range all.done {
		if i != piece {
			t.Fatalf("piece %d was done twice or not at all", i)
		}
	}
}

// A job becomes overdue and its goroutine is counted as stuck in one step. Otherwise a
// Run that returns in between takes the goroutine off a count that it is not part of.
func TestRunReturnsWhenItIsJustOverdue(t *testing.T) {
	const timeout = 10 * time.Millisecond
	p := New(1, timeout)
	running, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	p.Go(Job{
		Run:  func() { close(running); <-release },
		Done: func(err error) { done <- err },
	})
	<-running
	p.mu.Lock() // nothing can be counted
	time.Sleep(5 * timeout)
	close(release)
	time.Sleep(timeout)
	p.mu.Unlock()
	if err := <-done; err != nil {
		t.Errorf("a job that nobody has counted as overdue is settled with %v", err)
	}
	if err := p.Close(); err != nil || len(done) > 0 || p.stuck != 0 {
		t.Errorf("Close: %v; %d more outcomes; %d goroutines are stuck", err, len(done), p.stuck)
	}
}

// A job that waits behind others for longer than the timeout is no job that makes no
// progress, and neither is a call that a busy device serves after those before it.
func TestTimeoutMeansNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		device := make(chan struct{}, 1) // serves a call in 0.4 s, one after the other
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		for _, name := range names {
			c.Go(o.job(t.Context(), name, func() {
				device <- struct{}{}
				defer func() { <-device }()
				time.Sleep(400 * time.Millisecond)
			}))
		}
		slow := New(2, time.Second)
		turn := make(chan struct{}, 1)
		slow.Go(o.job(t.Context(), "before", func() {
			time.Sleep(900 * time.Millisecond)
			turn <- struct{}{}
		}))
		synctest.Wait()
		slow.Go(o.job(t.Context(), "behind", func() {
			<-turn
			time.Sleep(900 * time.Millisecond)
		}))
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, name := range append(names, "before", "behind") {
			o.want(t, name, nil)
		}
		for _, p := range []*Pool{c, slow} {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call that hangs is overdue in time, however many calls that began after it end.
func TestOvertakenCallIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(2, time.Second)
		release := make(chan struct{})
		c.Go(o.job(t.Context(), "hung", func() { <-release }))
		for range 100 {
			c.Go(Job{Run: func() { time.Sleep(100 * time.Millisecond) }})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		o.want(t, "hung", ErrOverdue)
		close(release)
		time.Sleep(time.Minute)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// However many bulk jobs are queued or hang, another job finds a goroutine.
func TestOthersOvertakeBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(4, time.Second)
		release := make(chan struct{})
		running := 0
		for i := range 10 {
			j := o.job(t.Context(), string(rune('a'+i)), func() { <-release })
			j.Bulk = 1
			c.Go(j)
		}
		synctest.Wait()
		if running = len(o.ran); running != 3 {
			t.Errorf("%d bulk jobs are running", running)
		}
		for _, name := range []string{"read", "another"} {
			c.Go(o.job(t.Context(), name, nothing))
			synctest.Wait()
			o.want(t, name, nil)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		o.want(t, "a", ErrOverdue)
		o.want(t, "j", kv.ErrTimeout)
		c.Go(o.job(t.Context(), "read while they hang", nothing))
		synctest.Wait()
		o.want(t, "read while they hang", nil)
		refused := o.job(t.Context(), "refused", nothing)
		refused.Bulk = 1
		c.Go(refused)
		o.want(t, "refused", kv.ErrTimeout)
		close(release)
		synctest.Wait()
		again := o.job(t.Context(), "again", nothing)
		again.Bulk = 1
		c.Go(again)
		synctest.Wait()
		o.want(t, "again", nil)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The bytes of the bulk jobs that run at once are bounded, but two may have any size.
func TestBulkBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outcomes
		c := New(32, time.Minute)
		release := make(chan struct{})
		for name, bulk := range map[string]int64{"large": 2 * BulkBytes, "half": BulkBytes / 2, "other half": BulkBytes / 2, "more": 1} {
			j := o.job(t.Context(), name, func() { <-release })
			j.Bulk = bulk
			c.Go(j)
		}
		for want := 0; want < 4; {
			synctest.Wait()
			o.mu.Lock()
			ran := slices.Clone(o.ran)
			o.mu.Unlock()
			c.mu.Lock()
			running := c.running
			c.mu.Unlock()
			if running.bytes > BulkBytes && running.jobs > 2 {
				t.Errorf("%d jobs of %d bytes are running", running.jobs, running.bytes)
			}
			if len(ran) == want {
				t.Fatal("none begins")
			}
			want = len(ran)
			for range running.jobs {
				release <- struct{}{}
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Bulk jobs have a share of the turns while others never stop coming.
func TestBulkHasAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(1, time.Second)
		begin := make(chan struct{})
		c.Go(Job{Run: func() { <-begin }})
		synctest.Wait()
		var o outcomes
		for range 3 * mostOvertaking {
			c.Go(Job{Run: func() { o.ran = append(o.ran, "other") }})
		}
		for range 3 {
			c.Go(Job{Bulk: 1, Run: func() { o.ran = append(o.ran, "bulk") }})
		}
		close(begin)
		synctest.Wait()
		var at []int
		for i, name := range o.ran {
			if name == "bulk" {
				at = append(at, i)
			}
		}
		if want := []int{mostOvertaking, 2*mostOvertaking + 1, 3*mostOvertaking + 2}; !slices.Equal(at, want) {
			t.Errorf("bulk jobs have the turns %v, want %v", at, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Pieces of work overtake those of bulk work.
func TestPiecesOvertakeBulkPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1, 0)
		begin := make(chan struct{})
		p.Go(Job{Run: func() { <-begin }})
		synctest.Wait()
		var order []string
		saves, loads := noting{&order, "save"}, noting{&order, "load"}
		p.EachBulk(&saves, 0, 4, 2)
		p.Each(&loads, 0, 3, 2)
		close(begin)
		synctest.Wait()
		if want := []string{"load", "load", "load", "save", "save", "save", "save"}; !slices.Equal(order, want) {
			t.Errorf("done in the order %q", order)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// noting is work that notes whose piece was done.
type noting struct {
	order *[]string
	name  string
}

func (n *noting) Do(int) { *n.order = append(*n.order, n.name) }

// Bulk jobs whose context has ended are settled before those that would overtake them, also
// while no bulk job may begin.
func TestCancelledBulkEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(4, time.Minute)
		release := make(chan struct{})
		for range 2 {
			c.Go(Job{Bulk: BulkBytes, Run: func() { <-release }})
		}
		for range 2 {
			c.Go(Job{Run: func() { <-release }})
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var order []string
		note := func(name string) func(error) {
			return func(error) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}
		}
		const cancelled = 10
		for range cancelled {
			c.Go(Job{Context: ctx, Bulk: 1, Run: func() {}, Done: note("cancelled")})
			c.Go(Job{Run: func() {}, Done: note("other")})
		}
		cancel()
		release <- struct{}{}
		synctest.Wait()
		if len(order) != 2*cancelled || slices.Contains(order[:cancelled], "other") {
			t.Errorf("settled in the order %q", order)
		}
		close(release)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
