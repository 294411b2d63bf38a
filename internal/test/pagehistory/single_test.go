package pagehistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// service is a process that serves pages alone.
type service struct {
	command []string
	address string
	child   *measure.Child
}

const startLimit = 2 * time.Minute // on a machine on which much else runs

// start starts the process and waits until it listens.
func (s *service) start() (err error) {
	if s.child, err = measure.StartChild(s.command[0], s.command[1:]...); err != nil {
		return err
	}
	for deadline := time.After(startLimit); ; {
		c, err := net.DialTimeout("tcp", s.address, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-s.child.Ended():
			return fmt.Errorf("it ended before it listened: %w; its log:\n%s", s.child.ExitError(), s.child.LastOutput())
		case <-deadline:
			return fmt.Errorf("it does not listen after %v: %w; its log:\n%s", startLimit, err, s.child.LastOutput())
		case <-time.After(5 * time.Millisecond): // a port that opens raises no event
		}
	}
}

// TestOneService has clients of both protocols use one service that is killed again and
// again, once with more pages than keys, when no key may be lost, and once with fewer.
func TestOneService(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes some seconds")
	}
	for _, protocol := range []Protocol{VLLM, SGLang} {
		for name, numPages := range map[string]int{"room for all": 4000, "few pages": 40} {
			t.Run(fmt.Sprintf("%s, %s", protocol, name), func(t *testing.T) {
				t.Parallel()
				oneService(t, protocol, numPages)
			})
		}
	}
}

func oneService(t *testing.T, protocol Protocol, numPages int) {
	l := Load{Protocol: protocol, Clients: 8, Keys: 100, NumPages: numPages, Lease: time.Second, Reserve: time.Second, Deletes: true}
	s := serveOne(t, &l, l.Lease)
	n := seed.New(t)
	rng := rand.New(rand.NewPCG(n, 0))
	var err error
	h := record(t, l, n, func(*History) {
		for range 4 {
			time.Sleep(500*time.Millisecond + time.Duration(rng.Int64N(int64(time.Second)))) // the load runs meanwhile
			s.child.Kill()
			if err = s.start(); err != nil {
				return
			}
		}
		time.Sleep(time.Second)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", h.Counts())
	for _, err := range h.Check(Eviction(numPages < 2*l.Keys)) {
		t.Error(err)
	}
	if c := h.Counts(); c.Saved == 0 || c.Found == 0 {
		t.Errorf("the history shows too little: %+v", c)
	}
}

// TestShortLeasesAreNoticed has a service that does not lease for as long as its clients
// think.
func TestShortLeasesAreNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes some seconds")
	}
	l := Load{Protocol: SGLang, Clients: 8, Keys: 100, NumPages: 10, Lease: 10 * time.Second, Reserve: 10 * time.Second}
	serveOne(t, &l, 10*time.Millisecond)
	h := record(t, l, seed.New(t), func(*History) { time.Sleep(2 * time.Second) })
	if wrong := h.Check(true); len(wrong) == 0 {
		t.Errorf("nothing was noticed in %+v", h.Counts())
	}
}

// serveOne starts a service that leases and reserves for so long, as the only host of a
// load, and makes the load's rank known.
func serveOne(t *testing.T, l *Load, lease time.Duration) *service {
	t.Helper()
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{address: freeAddress(t)}
	s.command = []string{
		binary, "pages", "serve", "--data", t.TempDir(), "--listen", s.address,
		"--lease", lease.String(), "--reserve", lease.String(), "--hold", "10ms", "--quarantine", (lease / 5).String(),
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.child.Stop(startLimit); err != nil {
			t.Error(err)
		}
	})
	l.Hosts = []Host{{URL: "http://" + s.address, File: pageFile(t, l.NumPages)}}
	if err := l.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// record runs the clients of a load for as long as trouble lasts.
func record(t *testing.T, l Load, seed uint64, trouble func(*History)) *History {
	h := New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx, l, seed)
	}()
	trouble(h)
	cancel()
	<-done
	return h
}

// pageFile returns a page file that the clients of one host share.
func pageFile(t *testing.T, numPages int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "pages"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(numPages) * pageBytes); err != nil {
		t.Fatal(err)
	}
	return f
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
