package etcdlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestHangingDirectory are the tests of a shared directory that hangs on one host, and of what only takes long.
func TestHangingDirectory(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"an elected host whose directory hangs makes room":                    testElectedHangs,
		"a host whose directory hangs is closed, and another leads":           testCloseHangs,
		"a leader whose directory hangs knows that it was replaced":           testLostHangs,
		"a candidate that is busy with a snapshot lets others go first":       testBusyCandidate,
		"a leader that counts for long what it has read keeps the lead #2198": testLongCount,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, members)
			s.ttl = shortLease
			test(s)
		})
	}
}

// trap is a file of a host's view of the shared directory, at which the host hangs.
type trap struct {
	*site
	dir, path string
	held      *os.File
}

func (s *site) trap(file string) *trap {
	s.Helper()
	dir := s.TempDir()
	t := &trap{site: s, dir: dir, path: filepath.Join(dir, file)}
	if err := unix.Mkfifo(t.path, 0o600); err != nil { // whoever opens a pipe waits for its other end
		s.Fatal(err)
	}
	return t
}

// catches waits until a host that reads hangs.
func (t *trap) catches() {
	t.Helper()
	await(t, "it hangs", func() (hangs bool) {
		f, err := os.OpenFile(t.path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		t.held = f // what comes now, it waits for
		return err == nil
	})
}

// open lets whoever hangs go on.
func (t *trap) open() {
	was := t.path + ".was"
	if err := os.Rename(t.path, was); err != nil {
		t.Error(err)
	}
	f, err := os.OpenFile(was, os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
	}
	f.Close()
	t.held.Close()
}

// in starts a host whose view of the shared directory is another one.
func (s *site) in(dir, name string) *peer {
	s.Helper()
	was := s.o.Dir
	defer func() { s.o.Dir = was }()
	s.o.Dir = dir
	return s.start(name)
}

// stands waits until a host is the last of so many candidates.
func (s *site) stands(name string, of int) {
	s.Helper()
	await(s, name+" is a candidate", func() bool {
		got, err := s.observer().cluster.Client().Get(s.Context(), s.prefix+"/election/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		return err == nil && len(got.Kvs) == of && strings.Contains(string(got.Kvs[of-1].Value), fmt.Sprintf("%q", name))
	})
}

func testElectedHangs(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	trap := s.trap(markName)
	defer trap.open()
	s.in(trap.dir, "b")
	s.stands("b", 2)
	c := s.follow("c")
	s.stands("c", 3)
	a.die()
	c.leads()
	c.applies("1")
}

func testCloseHangs(s *site) {
	a := s.lead("a")
	trap := s.trap(markName)
	b := s.in(trap.dir, "b")
	s.stands("b", 2)
	c := s.follow("c")
	a.die()
	trap.catches()
	if err := b.Close(); err == nil {
		s.Error("all of it has ended")
	}
	b.hung = true
	c.leads()
	trap.open()
	receive(s, "Start returns", b.started)
}

func testLostHangs(s *site) {
	trap := s.trap(markName + ".a" + unfinishedSuffix)
	defer trap.open()
	a := s.in(trap.dir, "a")
	a.leads()
	b := s.follow("b")
	a.die()
	receive(s, "it knows", a.Lost())
	b.leads()
}

func testBusyCandidate(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	s.stands("b", 2)
	c := s.follow("c")
	s.stands("c", 3)
	b.owner.mu.Lock() // it is asked for its state, and takes long
	defer b.owner.mu.Unlock()
	a.leaderOf().name <- "b"
	await(s, "it is asked", func() bool { return len(a.leaderOf().name) == 0 })
	a.die()
	c.leads()
}

func testLongCount(s *site) {
	a := s.prepare(s.join("a"))
	a.owner.replayed = func() { <-time.After((leadTerms + 1) * s.ttl) }
	a.run()
	a.leads()
	if why := a.leaderOf().term.Reason(); why != nil && strings.Contains(why.Error(), "resigned") { // on a busy machine, its lease may have ended
		s.Error(why)
	}
}
