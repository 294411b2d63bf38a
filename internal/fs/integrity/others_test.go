package integrity

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// otherProcess is what a test binary runs as in another process, see startOther.
const otherProcess = "KV3FS_INTEGRITY_OTHER"

// other is a process that does to a file what it is told, and answers each time.
type other struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	path string // of the file
}

// startOther starts a process that does to files what it is told.
func startOther(t testing.TB) *other {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), otherProcess+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &other{t, cmd, in, bufio.NewReader(out), ""}
	t.Cleanup(x.leaves)
	return x
}

// leaves ends the process.
func (o *other) leaves() {
	o.in.Close()
	if err := o.cmd.Wait(); err != nil && o.cmd.ProcessState == nil {
		o.t.Error(err)
	}
	if !o.cmd.ProcessState.Success() {
		o.t.Error(o.cmd.ProcessState)
	}
}

// does tells it one thing to do, and returns once its thread has done it.
func (o *other) does(what string, at int64) (thread uint32) {
	o.t.Helper()
	if _, err := fmt.Fprintln(o.in, what, at, o.path); err != nil {
		o.t.Fatal(err)
	}
	if _, err := fmt.Fscanf(o.out, "done by %d\n", &thread); err != nil {
		o.t.Fatalf("%s at %d: %v", what, at, err)
	}
	return thread
}

// otherMain does what it is told.
func otherMain() error {
	runtime.LockOSThread()
	fd := -1
	var mem []byte
	for {
		var what, path string
		var at int64
		if _, err := fmt.Scanln(&what, &at, &path); err != nil {
			return nil // the test is over
		}
		var err error
		switch what {
		case "nothing":
		case "look": // as a client with passthrough does, to read
			fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		case "open":
			fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		case "write":
			_, err = unix.Pwrite(fd, []byte("another's"), at)
		case "map":
			mem, err = unix.Mmap(fd, 0, int(at), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		case "store":
			mem[at]++
		case "close":
			if mem != nil {
				err = unix.Munmap(mem)
				mem = nil
			}
			unix.Close(fd)
			fd = -1
		case "truncate":
			err = unix.Truncate(path, at)
		case "storm":
			var end func()
			if end, err = storm(path, uint64(at)); err == nil {
				defer end()
			}
		}
		if err != nil {
			return fmt.Errorf("%s at %d: %w", what, at, err)
		}
		fmt.Println("done by", unix.Gettid())
	}
}

// storm does to the file at path whatever changes its bytes, until end is called.
func storm(path string, seeded uint64) (end func(), err error) {
	x := &others{rng: rand.New(rand.NewPCG(seeded, 1)), path: path, fd: -1}
	var stop atomic.Bool
	failed := make(chan error, 1)
	go func() {
		for !stop.Load() {
			err := x.try(func() {})
			if err == nil && x.rng.IntN(4) == 0 {
				err = unix.Truncate(path, x.rng.Int64N(fileBytes))
			}
			if x.rng.IntN(4) == 0 {
				x.leave()
			}
			if err != nil {
				failed <- err
				return
			}
		}
		x.leave()
		failed <- nil
	}()
	return func() {
		stop.Store(true)
		if err := <-failed; err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}, nil
}

// What others do to any part of a file between the beginning and the end of a single write of the daemon does not show in
// the file's times: it is unknown, even once they have left.
func TestOthersDuringOneWrite(t *testing.T) {
	rng := rngFor(t)
	const at = 3 * RangeBytes
	x := startOther(t)
	for _, dir := range dirs(t) {
		for name, acts := range map[string]func(x *other){
			"writes": func(x *other) { x.does("open", 0); x.does("write", at); x.does("close", 0) },
			"writes twice": func(x *other) {
				x.does("open", 0)
				x.does("write", at)
				x.does("write", at+9)
				x.does("close", 0)
			},
			"writes and stays":   func(x *other) { x.does("open", 0); x.does("write", at) },
			"stores":             func(x *other) { x.does("open", 0); x.does("map", at+1); x.does("store", at); x.does("close", 0) },
			"cuts":               func(x *other) { x.does("truncate", at+5) },
			"cuts and lengthens": func(x *other) { x.does("truncate", at); x.does("truncate", 4*RangeBytes) },
		} {
			s := openStore(t, dir)
			o := create(t, s, filepath.Join(dir, strings.ReplaceAll(name, " ", "-")))
			x.path = o.path
			o.write(random(rng, 4*RangeBytes), 0)
			b := random(rng, RangeBytes)
			w := o.sums.BeginWrite(&Write{}, o.fd, 0, RangeBytes)
			w.HashOwn(b)
			if _, err := unix.Pwrite(o.fd, b, 0); err != nil {
				t.Fatal(err)
			}
			acts(x)
			w.End(true)
			_, bad, found, _ := o.read(0, 4*RangeBytes)
			if found {
				t.Errorf("%s: another process %s: taken for damage: %v", dir, name, bad)
			}
			o.close()
			s.Close()
		}
	}
}

// What was written while another process has the file open is unknown until that has left, and then it is compared again.
func TestOthersLeave(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		if !s.fine {
			t.Skip("NOT TESTED: files' times are coarse")
		}
		o := create(t, s, dir+"/f")
		o.write(random(rng, RangeBytes), 0)
		if d := o.sums.words.get(0).degree(); d != firm {
			t.Errorf("%s: of degree %d while nobody else has the file", dir, d)
		}
		x := startOther(t)
		x.path = o.path
		x.does("open", 0)
		o.write(random(rng, RangeBytes), RangeBytes)
		for k := range int64(2) {
			if d := o.sums.words.get(k).degree(); d != soft {
				t.Errorf("%s: range %d is of degree %d while another process has the file", dir, k, d)
			}
		}
		x.does("close", 0)
		o.write(random(rng, RangeBytes), 0)
		if d := o.sums.words.get(0).degree(); d != firm {
			t.Errorf("%s: of degree %d once the other process has left", dir, d)
		}
		o.close()
		s.Close()
	}
}

// Other processes change a file in all ways, at any moment, while the daemon writes and reads it: nothing is taken
// for damage. Once they have left, damage of what is written is found.
func TestOthersAtOnce(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, dir+"/f")
		o.write(random(rng, fileBytes), 0)
		x := startOther(t)
		x.path = o.path
		x.does("storm", rng.Int64())
		var work sync.WaitGroup
		for i := range 3 {
			seeded := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
			work.Go(func() {
				for range 80 {
					off := seeded.Int64N(fileBytes) / RangeBytes * RangeBytes
					if i > 0 {
						o.write(random(seeded, 1+seeded.Int64N(2*RangeBytes)), off)
					}
					if _, bad, found, _ := o.read(0, fileBytes); found {
						t.Errorf("%s: what others wrote was taken for damage: %v", dir, bad)
						return
					}
				}
			})
		}
		work.Wait()
		x.leaves()
		for range 2 {
			if _, bad, found, _ := o.read(0, fileBytes); found {
				t.Errorf("%s: what others had written was taken for damage: %v", dir, bad)
			}
		}
		o.write(random(rng, fileBytes), 0)
		if s.fine {
			damage(t, o.sums, o.fd, rng.Int64N(fileBytes))
			if _, _, found, _ := o.read(0, fileBytes); !found {
				t.Errorf("%s: damage was not found once others had left", dir)
			}
		}
		o.close()
		s.Close()
	}
}
