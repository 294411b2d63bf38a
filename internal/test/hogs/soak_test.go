package hogs

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func TestMain(m *testing.M) { os.Exit(hostile.Main(m, programs())) }

func programs() map[string]hostile.Program {
	all := honestPrograms()
	for name, h := range hogs() {
		all[name] = attack(h.step)
	}
	all["fork child"] = forkChild
	return all
}

const diskFiles = 64

// length returns how long hogs run: KV3FS_SOAK. Without it the test is skipped: hogs would
// disturb the tests of other packages that run at the same time.
func length(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("KV3FS_SOAK")
	if text == "" {
		t.Skip("KV3FS_SOAK is not set; scripts/test sets it, and runs this test alone")
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KV3FS_SOAK: %v", err)
	}
	return d
}

// chosen returns the names of the hogs that run: those of KV3FS_HOGS, or else all.
func chosen(t *testing.T) []string {
	t.Helper()
	all := slices.Sorted(maps.Keys(hogs()))
	text := os.Getenv("KV3FS_HOGS")
	switch text {
	case "":
		return all
	case "none":
		return nil
	}
	names := strings.Split(text, ",")
	for _, name := range names {
		if !slices.Contains(all, name) {
			t.Fatalf("KV3FS_HOGS: there is no %q in %v", name, all)
		}
	}
	return names
}

// deadline returns the daemon's deadline, beyond which no honest call may last. A short run
// is one of CI, whose machines may keep anything waiting for long.
func deadline(soak time.Duration) time.Duration {
	if soak < time.Minute {
		return 30 * time.Second
	}
	return 5 * time.Second
}

func TestHogs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the test runs hostile users for many seconds")
	}
	daemontest.NeedRoot(t)
	soak, names := length(t), chosen(t)
	needMemory(t)
	limit := deadline(soak)
	data := hostile.NewData(t)
	disk := hostile.NewDisk(t, data, diskFiles)
	address := freeAddress(t)
	d := daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: []string{
		"--drain", "2s", "--deadline", limit.String(), "--pages-listen", address,
	}})

	x := &run{t: t, d: d, limit: limit, address: address}
	x.connect()
	alone := min(max(soak/4, 3*time.Second), time.Minute)
	x.during("alone", alone)

	disk.Hang()
	x.release(names, soak >= time.Minute)
	t.Cleanup(disk.Release) // before the processes are killed
	x.during("with hogs", soak)
	disk.Release()
	x.stopHogs()

	x.during("afterwards", alone/2)
	x.disconnect()
	x.report()
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	for _, p := range x.processes() {
		if left := semaphoresOf(p.User); len(left) > 0 {
			t.Errorf("the daemon left semaphores: %v", left)
		}
	}
}

// needMemory ends a test where /dev/shm is so small that hogs fill it, against which only its
// size protects.
func needMemory(t *testing.T) {
	t.Helper()
	if free, err := shm.FreeBytes(); err != nil || free < 1<<30 {
		daemontest.NotTested(t, fmt.Sprintf("%s has only %d bytes: %v", shm.Dir, free, err))
	}
}

// run is one run: honest clients and hogs.
type run struct {
	t       *testing.T
	d       *daemontest.Daemon
	limit   time.Duration
	address string

	phase   atomic.Pointer[string]
	phases  []string
	reading sync.WaitGroup // a goroutine for each client
	clients []*connected
	hogs    []*loose
}

// connected is an honest client.
type connected struct {
	name    string
	process *hostile.Process

	mu     sync.Mutex
	phases map[string]*figures
	err    error
}

// loose is a hog.
type loose struct {
	name     string
	process  *hostile.Process
	instance int
	counts   counts
}

// dir makes a directory that only u can use, and returns its path on the mount.
func (x *run) dir(u hostile.User) string {
	x.t.Helper()
	name := fmt.Sprintf("user-%d", u.ID)
	path := filepath.Join(x.d.Data, name)
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		x.t.Fatal(err)
	}
	if err := os.Chown(path, int(u.ID), int(u.ID)); err != nil {
		x.t.Fatal(err)
	}
	return filepath.Join(x.d.Mount, name)
}

// connect starts the honest clients and waits until each has made calls.
func (x *run) connect() {
	x.enter("connecting")
	tool := usrbioTool(x.t)
	for _, name := range slices.Sorted(maps.Keys(honestPrograms())) {
		u := hostile.NewUser(x.t)
		c := &connected{name: name, phases: map[string]*figures{}}
		// A call of a client gives up later than it fails the test.
		c.process = hostile.Start(x.t, u, name, honest{Mount: x.d.Mount, Dir: x.dir(u), Pages: "http://" + x.address, Tool: tool, Limit: 2 * x.limit})
		x.clients = append(x.clients, c)
	}
	for _, c := range x.clients {
		var f figures
		c.process.Await(&f)
		c.add("connecting", f)
		x.reading.Go(func() { x.collect(c) })
	}
	// If the test ends early, the clients end first, and then what reads them.
	x.t.Cleanup(func() {
		for _, c := range x.clients {
			c.process.Kill()
		}
		x.reading.Wait()
	})
}

// collect adds what a client reports to the phase of the run, until the client has ended.
func (x *run) collect(c *connected) {
	for {
		var f figures
		if err := c.process.Next(&f, 3*x.limit+hostile.Patience); err != nil {
			select {
			case <-c.process.Ended():
			default:
				c.mu.Lock()
				c.err = err
				c.mu.Unlock()
			}
			return
		}
		c.add(*x.phase.Load(), f)
	}
}

func (c *connected) add(phase string, f figures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phases[phase] == nil {
		c.phases[phase] = &figures{}
	}
	c.phases[phase].merge(f)
}

func (x *run) enter(phase string) {
	x.phases = append(x.phases, phase)
	x.phase.Store(&phase)
}

// during lets everything run for a while. It ends early if the daemon dies.
func (x *run) during(phase string, d time.Duration) {
	x.t.Helper()
	x.enter(phase)
	select {
	case <-time.After(d):
	case <-x.d.Ended():
		x.report()
		x.t.Fatalf("the daemon died: %v", x.d.Err())
	}
}

// release starts the hogs, while the disk hangs. They know the honest clients, to attack what they have.
func (x *run) release(names []string, long bool) {
	var victims []uint32
	for _, c := range x.clients {
		victims = append(victims, c.process.User.ID)
	}
	for _, name := range names {
		u := hostile.NewUser(x.t)
		for i := range hogs()[name].instances {
			o := orders{Mount: x.d.Mount, Dir: x.dir(u), Pages: x.address, Users: victims, Long: long}
			x.hogs = append(x.hogs, &loose{name: name, instance: i, process: hostile.Start(x.t, u, name, o)})
		}
	}
	for _, h := range x.hogs {
		var ready string
		h.process.Await(&ready)
	}
}

func (x *run) stopHogs() {
	var wg sync.WaitGroup
	for _, h := range x.hogs {
		wg.Go(func() {
			if err := h.process.Stop(); err != nil {
				x.t.Errorf("hog %s: %v", h.name, err)
				return
			}
			if err := h.process.Next(&h.counts, 0); err != nil {
				x.t.Error(err)
			}
		})
	}
	wg.Wait()
}

func (x *run) disconnect() {
	var wg sync.WaitGroup
	for _, c := range x.clients {
		wg.Go(func() {
			if err := c.process.Stop(); err != nil {
				x.t.Errorf("%s: %v", c.name, err)
			}
		})
	}
	wg.Wait()
	x.reading.Wait()
}

func (x *run) processes() (all []*hostile.Process) {
	for _, c := range x.clients {
		all = append(all, c.process)
	}
	for _, h := range x.hogs {
		all = append(all, h.process)
	}
	return all
}

// report prints all figures and fails the test for what no honest client may meet.
func (x *run) report() {
	t := x.t
	var b strings.Builder
	fmt.Fprintf(&b, "honest clients: calls, p50, p99, longest\n%-32s", "")
	for _, phase := range x.phases[1:] {
		fmt.Fprintf(&b, " | %-36s", phase)
	}
	for _, c := range x.clients {
		c.mu.Lock()
		defer c.mu.Unlock()
		fmt.Fprintf(&b, "\n%-32s", c.name)
		var all figures
		for _, phase := range x.phases[1:] {
			f := cmp.Or(c.phases[phase], &figures{})
			fmt.Fprintf(&b, " | %s", f)
		}
		for _, f := range c.phases {
			all.merge(*f)
		}
		fmt.Fprintf(&b, " | wrong %d, errors %d", all.Wrong, len(all.Errors))
		if all.Wrong > 0 || len(all.Errors) > 0 || c.err != nil {
			slices.Sort(all.Errors)
			kinds := slices.Compact(all.Errors)
			t.Errorf("%s: %d wrong, %d errors: %q %v", c.name, all.Wrong, len(all.Errors), kinds[:min(len(kinds), 8)], c.err)
		}
		if len(all.Nanos) == 0 {
			t.Errorf("%s: not one call", c.name)
		}
		if all.longest() > x.limit {
			t.Errorf("%s: a call took %v, and the deadline is %v", c.name, all.longest(), x.limit)
		}
	}
	for _, h := range x.hogs {
		fmt.Fprintf(&b, "\nhog %-15s %d  %v", h.name, h.instance, h.counts)
	}
	t.Log(b.String())
}

// semaphoresOf lists the semaphores of a user in /dev/shm.
func semaphoresOf(u hostile.User) (paths []string) {
	for _, path := range hostile.Objects(u.ID) {
		if strings.HasPrefix(filepath.Base(path), "sem.") {
			paths = append(paths, path)
		}
	}
	return paths
}

// freeAddress returns an address that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// usrbioTool builds the program that drives the C library, with the library beside it.
func usrbioTool(t *testing.T) string {
	t.Helper()
	build := filepath.Join(daemontest.NewDir(t), "c")
	out, err := exec.Command("make", "-s", "-C", "../../../clients/c", "BUILD="+build, "tools").CombinedOutput()
	if err != nil {
		t.Fatalf("build the C library: %v\n%s", err, out)
	}
	if out, err := exec.Command("chmod", "-R", "a+rX", build).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(build, "usrbio_tool")
}
