package pagesoak

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// The files of a world have worldPages pages a rank, for worldKeys keys, which as many
// writers as readers use.
const (
	worldPages = 64
	worldKeys  = 2000
	workers    = 8
)

// length returns KV3FS_SOAK, or else how long a test usually runs.
func length(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("KV3FS_SOAK")
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KV3FS_SOAK: %v", err)
	}
	return d
}

// flags returns the flags that set the times of the service.
func (x times) flags(prefix string) []string {
	return []string{prefix + "lease", x.lease.String(), prefix + "reserve", x.reserve.String(), prefix + "quarantine", x.quarantine.String()}
}

// worlds makes the page files of the engines on a mount, and initialises their ranks.
func worlds(t *testing.T, mountPoint, base string) []*world {
	t.Helper()
	var all []*world
	for _, name := range []string{"vllm", "sglang"} {
		c := &tally{}
		requests := caller{base, connections(t), c}
		w := &world{
			name: name, times: shortTimes(), numPages: worldPages, numKeys: worldKeys, tally: c,
			protocol: vllm{requests}, digits: 32,
			newRings: func() *rings { return &rings{mountPoint: mountPoint, prefix: name, tally: c} },
		}
		if name == "sglang" {
			w.protocol, w.digits = sglang{requests}, 64
		}
		if err := makePageFiles(mountPoint, name, worldPages); err != nil {
			t.Fatal(err)
		}
		for rank := range ranks {
			if err := w.protocol.initialize(t.Context(), rank, worldPages); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, w)
	}
	return all
}

// slowest is how much longer than usual a test may run until it shows something.
const slowest = 5 * time.Minute

// tells reports whether a test has shown something: pages of all worlds were read, and more keys
// stored than there are pages, or an engine has failed.
func tells(all []*world) bool {
	stored, pages := 0, 0
	for _, w := range all {
		if w.tally.failed() {
			return true
		}
		if w.tally.hits.Load() == 0 {
			return false
		}
		stored += w.tally.numKeys()
		pages += ranks * w.numPages
	}
	return stored > pages
}

// soak runs the engines of all worlds and a keeper for a while, and restarts the service
// meanwhile.
func soak(t *testing.T, mountPoint, address string, restart func() error) {
	t.Helper()
	n := seed.New(t)
	all := worlds(t, mountPoint, "http://"+address)
	kept := &tally{}
	keeper := newKeeper(vllm{caller{"http://" + address + "/ns/keeper", connections(t), kept}})
	for rank := range ranks {
		if err := keeper.protocol.initialize(t.Context(), rank, keeperPages); err != nil {
			t.Fatal(err)
		}
	}

	usual := length(t, 12*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), usual+slowest)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		for on := pause(ctx, usual); on && !tells(all); {
			on = pause(ctx, 50*time.Millisecond)
		}
	})
	for _, w := range all {
		w.start(ctx, &wg, n, workers, workers)
	}
	wg.Go(func() {
		if err := keeper.run(ctx); err != nil {
			kept.fail(err)
		}
	})
	rng := rand.New(rand.NewPCG(n, 1))
	kills, err := killAndRestart(ctx, func(kills int) time.Duration { return gap(rng, kills) }, restart)
	cancelled := ctx.Err() // nil if a restart failed before the time was up
	cancel()
	wg.Wait()
	if err != nil || cancelled == nil {
		t.Errorf("restart: %v", err)
	}
	t.Logf("the service was killed %d times", kills)

	// When all engines have stopped, everything that was kept exists.
	if err := keeper.check(t.Context(), 0); err != nil {
		t.Error(err)
	}
	t.Logf("keeper: %d keys kept", len(keeper.kept[0]))
	kept.report(t, "keeper")
	if len(keeper.kept[0]) == 0 {
		t.Error("the keeper kept nothing")
	}
	stored, pages := 0, 0
	for _, w := range all {
		w.tally.report(t, w.name)
		if w.tally.hits.Load() == 0 {
			t.Errorf("%s: no page was read, so the test shows nothing", w.name)
		}
		stored += w.tally.numKeys()
		pages += ranks * w.numPages
	}
	if stored <= pages {
		t.Errorf("%d keys were stored on %d pages, so the test shows no eviction", stored, pages)
	}
}

// gap returns how long the n-th life of a service lasts. A restarted service must treat all
// keys as just leased, and evicts nothing for max(lease, reserve) + quarantine, 8 s. So the
// first life is long enough to evict; later ones end soon, or last longer than 8 s.
func gap(rng *rand.Rand, n int) time.Duration {
	least, spread := 2*time.Second, 11*time.Second
	switch {
	case n == 0:
		least, spread = 4*time.Second, 2*time.Second
	case n%2 == 1:
		least, spread = time.Second/2, 3*time.Second/2
	}
	return least + time.Duration(rng.Int64N(int64(spread)))
}

// Only the page service is killed; mount and rings stay.
func TestServiceKilled(t *testing.T) {
	needMounts(t)
	d := daemon(t, "--pages-listen", "off")
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	pages := launch(t, "the page service", address,
		append([]string{binary, "pages", "serve", "--data", t.TempDir(), "--listen", address}, shortTimes().flags("--")...)...)
	soak(t, d.Mount, address, func() error { pages.child.Kill(); return pages.start() })
}

// The whole daemon is killed, with mount, rings and page service. Engines register again,
// which real engines do when they are restarted.
func TestDaemonKilled(t *testing.T) {
	needMounts(t)
	address := freeAddress(t)
	d := daemon(t, append([]string{"--pages-listen", address}, shortTimes().flags("--pages-")...)...)
	soak(t, d.Mount, address, func() error { d.Kill(); d.Start(t); return nil })
}

// The same engines must find the defects of the reference, which evicts pages under
// readers and forgets reservations. Otherwise the tests above show nothing.
func TestReferenceIsCaught(t *testing.T) {
	needMounts(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("NOT TESTED: there is no python3")
	}
	mountPoint := daemon(t, "--pages-listen", "off").Mount
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	launch(t, "the reference", address, python, "../../bench/pagesbench/reference/server.py", "--port", port)

	all := worlds(t, mountPoint, "http://"+address)
	ctx, cancel := context.WithTimeout(t.Context(), slowest)
	defer cancel()
	n := seed.New(t)
	var wg sync.WaitGroup
	for _, w := range all {
		w.start(ctx, &wg, n, workers, workers)
	}
	caught := false
	for !caught && pause(ctx, 50*time.Millisecond) {
		for _, w := range all {
			caught = caught || w.tally.wrongPages() > 0
		}
	}
	cancel()
	wg.Wait()
	for _, w := range all {
		t.Logf("%s: %v", w.name, w.tally)
	}
	if !caught {
		t.Error("the reference gave away pages under readers, and no check failed")
	}
}
