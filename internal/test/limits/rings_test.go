package limits

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

func ringPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"flood": floodProgram}
}

// flood asks a client to submit the same requests to each of its rings at once.
type flood struct {
	Rings int
	Paths []string // request i of a ring reads file i, over and over
	Each  int      // requests of a ring
	Bytes int64    // of a request
	Slots int64    // parts of the buffer that requests use in turn
	Limit time.Duration
}

// floodResult is how the requests of a flood ended.
type floodResult struct {
	Results map[int64]int // how many had this result
	Longest time.Duration // from the submission to the last completion
}

// floodProgram reports true once everything is submitted, and a floodResult when all
// requests are answered or Limit has passed.
func floodProgram(s *hostile.Self) error {
	var a flood
	if err := s.Args(&a); err != nil {
		return err
	}
	mount, err := usrbio.FindMount(context.Background(), a.Paths[0])
	if err != nil {
		return err
	}
	inos := make([]uint64, len(a.Paths))
	for i, path := range a.Paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		inos[i] = st.Ino
	}
	id, mem, err := hostile.NewIov(mount, a.Slots*a.Bytes)
	if err != nil {
		return err
	}
	defer mem.Unmap()
	var rings []*hostile.Ring
	for range a.Rings {
		r, err := hostile.NewRing(mount, a.Each, ".r0.t0")
		if err != nil {
			return err
		}
		defer r.Close()
		rings = append(rings, r)
	}
	began := time.Now()
	for _, r := range rings {
		for i := range a.Each {
			r.Push(int32(i), wire.Args{BufID: id, BufOff: uint64(int64(i) % a.Slots * a.Bytes), FileIno: inos[i%len(inos)], Len: uint64(a.Bytes)})
		}
		r.Post()
	}
	if err := s.Report(true); err != nil {
		return err
	}
	got := floodResult{Results: map[int64]int{}}
	for _, r := range rings {
		for _, c := range r.Reap(a.Each, a.Limit-time.Since(began)) {
			got.Results[c.Result]++
		}
	}
	got.Longest = time.Since(began)
	return s.Report(got)
}

// A user floods the daemon with requests of 256 MiB. Another user's batches are served as
// if nothing was, and every request of the flood is answered at the deadline.
func TestLargeRequestsDelayNobodyElse(t *testing.T) {
	const deadline = 5 * time.Second
	d := serve(t, "--deadline", deadline.String())
	hog, other := hostile.NewUser(t), hostile.NewUser(t)
	path := newFile(t, d, hog, 0, 0)
	if err := os.Truncate(filepath.Join(d.Data, filepath.Base(path)), 256<<20); err != nil {
		t.Fatal(err)
	}
	a := flood{Rings: 8, Paths: []string{path}, Each: 512, Bytes: 256 << 20, Slots: 1, Limit: deadline + 20*time.Second}
	p := hostile.Start(t, hog, "flood", a)
	var submitted bool
	p.Await(&submitted)
	got := read(t, d, other, 30, 2*deadline)
	t.Logf("another user's batch took %v at most", got.Longest)
	if got.Longest > deadline/2 { // 14 s and more where large requests are not shared out
		t.Errorf("another user's batch took %v", got.Longest)
	}
	var flooded floodResult
	p.Await(&flooded)
	t.Logf("the last request of the flood was answered after %v; deadline %v", flooded.Longest, deadline)
	total := 0
	for result, n := range flooded.Results {
		if total += n; result != 256<<20 && result != -int64(syscall.ETIMEDOUT) {
			t.Errorf("%d requests of the flood ended with %d", n, result)
		}
	}
	if total != a.Rings*a.Each || flooded.Longest > deadline+5*time.Second {
		t.Errorf("%d of %d requests of the flood were answered in %v; deadline %v", total, a.Rings*a.Each, flooded.Longest, deadline)
	}
}

// serveHangingDisk starts a daemon with a disk of that many files, which hangs.
func serveHangingDisk(t *testing.T, files int, flags ...string) (*daemontest.Daemon, *hostile.Disk, []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	daemontest.NeedRoot(t)
	data := hostile.NewData(t)
	disk := hostile.NewDisk(t, data, files)
	d := daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: flags})
	var paths []string
	for i := range files {
		paths = append(paths, filepath.Join(d.Mount, "disk", "f"+strconv.Itoa(i)))
	}
	disk.Hang()
	return d, disk, paths
}

// awaitHanging waits until a call hangs in the disk.
func awaitHanging(t *testing.T, disk *hostile.Disk) {
	t.Helper()
	select {
	case <-disk.Hanging():
	case <-time.After(hostile.Patience):
		t.Fatal("no request reaches the hung disk")
	}
}

// Requests that are stuck in a hung part of the data directory take no workers: cached data
// elsewhere is read as ever. They end at their deadline.
func TestStuckRequestsTakeNoWorkers(t *testing.T) {
	const deadline = 5 * time.Second
	d, disk, paths := serveHangingDisk(t, 40, "--workers", "4", "--deadline", deadline.String())
	a := flood{Rings: 4, Paths: paths, Each: 120, Bytes: 4096, Slots: 120, Limit: deadline + 20*time.Second}
	p := hostile.Start(t, hostile.NewUser(t), "flood", a)
	t.Cleanup(disk.Release)
	var submitted bool
	p.Await(&submitted)
	awaitHanging(t, disk)
	got := read(t, d, hostile.NewUser(t), 20, 2*deadline)
	t.Logf("another user's batch took %v at most", got.Longest)
	var flooded floodResult
	p.Await(&flooded)
	if n := flooded.Results[-int64(syscall.ETIMEDOUT)]; n != a.Rings*a.Each {
		t.Errorf("%d of %d stuck requests timed out: %v", n, a.Rings*a.Each, flooded.Results)
	}
	t.Logf("the last stuck request was answered after %v; deadline %v", flooded.Longest, deadline)
	if flooded.Longest > deadline+5*time.Second {
		t.Errorf("the last stuck request was answered after %v; deadline %v", flooded.Longest, deadline)
	}
	disk.Release()
	read(t, d, hostile.NewUser(t), 1, 2*deadline)
}

// A daemon that is stopped for longer than the deadline, and continued, answers the requests
// that waited meanwhile as if it had not been.
func TestPauseOfTheDaemon(t *testing.T) {
	const deadline = 3 * time.Second
	d, disk, paths := serveHangingDisk(t, 1, "--deadline", deadline.String())
	a := flood{Rings: 1, Paths: paths, Each: 1, Bytes: 4096, Slots: 1, Limit: 10 * deadline}
	p := hostile.Start(t, hostile.NewUser(t), "flood", a)
	t.Cleanup(disk.Release)
	var submitted bool
	p.Await(&submitted)
	awaitHanging(t, disk)
	// Not d.Freeze: it waits for all threads, and one waits in the disk.
	t.Cleanup(func() { d.Signal(syscall.SIGCONT) })
	if err := d.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(deadline + time.Second)
	d.Thaw(t)
	time.Sleep(deadline / 8) // so that a deadline that has passed is noticed
	disk.Release()
	var got floodResult
	p.Await(&got)
	if got.Results[4096] != 1 {
		t.Errorf("the request that waited while the daemon was stopped ended with %v", got.Results)
	}
}
