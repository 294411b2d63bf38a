package restarts

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// stage is a daemon under kv3fs hold, and clients of it.
type stage struct {
	t     *testing.T
	d     *daemontest.Daemon
	rings *load
	lib   *library
	mount *crowd // nil: nobody uses the mount by calls
	rng   *rand.Rand
}

func newStage(t *testing.T, env ...string) *stage {
	t.Helper()
	s := &stage{t: t, rng: rand.New(rand.NewPCG(seed.New(t), 5))}
	s.d, _ = serveAs(t, daemontest.Options{Hold: true, Env: env, Flags: []string{"--on-term", "handover"}})
	s.rings = newLoad(t, s.d.Mount, s.d.Data, rand.New(rand.NewPCG(s.rng.Uint64(), 0)))
	s.lib = newLibrary(t, s.d.Mount)
	return s
}

// through has the clients work while the daemon is replaced so often. After each time, everybody gets something done.
func (s *stage) through(times int, replace func()) {
	s.t.Helper()
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	failed := make(chan error, 2)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { failed <- s.rings.runUntil(ctx, stop) }()
	go func() { failed <- s.lib.runUntil(stop) }()
	var err error
	running := 2
	for i := 0; i < times && err == nil && !s.t.Failed(); i++ {
		time.Sleep(time.Duration(s.rng.IntN(50)) * time.Millisecond) // the moment is what is tested
		replace()
		s.d.AwaitServed(s.t, i+2)
		if s.mount != nil {
			s.mount.awaitRounds()
		}
		for _, progress := range []<-chan struct{}{s.rings.progress, s.lib.progress} {
			for range 2 { // one that was there
				select {
				case <-progress:
				case err = <-failed:
					running--
				case <-time.After(patience):
					err = fmt.Errorf("the clients of rings hang")
				}
				if err != nil {
					break
				}
			}
		}
	}
	end()
	for ; running > 0 && err == nil; running-- {
		select {
		case err = <-failed:
		case <-time.After(patience):
			err = fmt.Errorf("the clients of rings do not end")
		}
	}
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.d.Log())
	}
	if s.mount != nil {
		s.mount.end()
	}
	s.rings.verify()
	s.t.Logf("%d requests of the Go client over %d daemons", s.rings.done, s.d.Served())
}

// signal sends one to the daemon that serves, and returns when that has ended.
func (s *stage) signal(sig syscall.Signal) {
	s.t.Helper()
	pid := s.d.Server(s.t)
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err != nil {
		s.t.Fatalf("signal %v to process %d: %v\n%s", sig, pid, err, s.d.Log())
	}
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		switch {
		case n == 1:
			return
		case err != nil && err != unix.EINTR, time.Now().After(end):
			s.t.Fatalf("process %d does not end: %v\n%s", pid, err, s.d.Log())
		}
	}
}

// often returns how often a daemon is replaced: many times in a soak.
func often(few, many int) int {
	if os.Getenv("KV3FS_SOAK") != "" {
		return many
	}
	return few
}

// Handed over by SIGTERM, neither rings nor calls on the mount see anything but a pause.
func TestHandovers(t *testing.T) {
	s := newStage(t)
	s.mount = workOn(t, s.d.Mount)
	s.through(often(5, 100), func() { s.signal(syscall.SIGTERM) })
}

// So it is when the daemon is killed at any moment.
func TestKills(t *testing.T) {
	s := newStage(t)
	s.mount = workOn(t, s.d.Mount)
	s.through(often(5, 200), func() { s.signal(syscall.SIGKILL) })
}

// And when another version is executed in its place.
func TestUpgrades(t *testing.T) {
	s := newStage(t)
	s.mount = workOn(t, s.d.Mount)
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s.through(often(5, 100), func() {
		out, err := exec.Command(binary, "upgrade", "--data", s.d.Data, "--timeout", "2m", "--json").CombinedOutput()
		var report struct {
			Kept bool `json:"mount_kept"`
		}
		if err != nil || json.Unmarshal(out, &report) != nil || !report.Kept {
			t.Fatalf("upgrade: %v: %s\n%s", err, out, s.d.Log())
		}
	})
}

// And where each daemon dies at the same step between taking a request and telling its client.
func TestDeathAtEachStep(t *testing.T) {
	needInvariants(t)
	rng := rand.New(rand.NewPCG(seed.New(t), 6))
	for _, point := range []string{"A1", "A2", "A3", "C0", "C1", "C2", "C3", "C4"} {
		t.Run(point, func(t *testing.T) {
			s := newStage(t, fmt.Sprintf("%s=%s:%d", dieVariable, point, 200+rng.IntN(400)))
			s.through(often(1, 13), func() {}) // it dies by itself
		})
	}
}

// Without anybody who holds the mount's descriptor, what is open on the mount is cut off by kill -9, and rings go on.
func TestKilledWithoutHolder(t *testing.T) {
	d, _ := serve(t)
	l := newLoad(t, d.Mount, d.Data, rand.New(rand.NewPCG(seed.New(t), 7)))
	f, err := os.Create(filepath.Join(d.Mount, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = run(t, l, func() {
		for range often(2, 20) {
			d.Kill()
			if _, err := f.Stat(); err == nil || !isNotConnected(err) {
				t.Errorf("fstat without a daemon: %v", err)
			}
			d.Start(t)
			if _, err := f.Stat(); err == nil || !isNotConnected(err) {
				t.Errorf("fstat of a file of the mount before: %v", err)
			}
			<-l.progress
			<-l.progress
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	l.verify()
}
