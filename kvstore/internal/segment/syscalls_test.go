package segment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	tracedDir = "SEGMENT_TEST_TRACED_DIR"
	hitsFrom  = "hits begin"
	hitsTo    = "hits end"
	hits      = 500
)

// TestTraced is the process whose system calls TestHitIsReadsOnly counts.
func TestTraced(t *testing.T) {
	dir := os.Getenv(tracedDir)
	if dir == "" {
		t.Skip("TestHitIsReadsOnly runs this")
	}
	o := options(dir, small, 6, 32)
	s := open(t, o)
	save(t, s, keysOf(0, 50)...)
	s = reopen(t, s, o)
	waitReady(t, s)
	waitFlushed(t, s)
	fmt.Println(hitsFrom)
	for i := range hits {
		loads(t, s, keyOf(i%50))
		found(t, s, keyOf(i%50))
	}
	fmt.Println(hitsTo)
}

// waitFlushed waits until the store has done what it does after Open: it seals and flushes
// the segments that are full.
func waitFlushed(t *testing.T, s *Store) {
	t.Helper()
	until(t, "full segments are flushed", func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, seg := range s.full {
			if !seg.sealed || !seg.unflushed.IsZero() || seg.pins.Load() > 0 {
				return false
			}
		}
		return true
	})
}

// A hit only reads open files. It opens, stats and renames nothing, and makes no other
// call for a name or an inode.
func TestHitIsReadsOnly(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed; scripts/need test installs it")
	}
	out := filepath.Join(t.TempDir(), "calls")
	child := exec.Command(strace, "-f", "-o", out, "-e", "trace=%file,%desc", os.Args[0], "-test.run=^TestTraced$")
	child.Env = append(os.Environ(), tracedDir+"="+t.TempDir())
	if said, err := child.CombinedOutput(); err != nil {
		if strings.Contains(string(said), "ptrace") {
			t.Skipf("tracing is not permitted here: %s", said)
		}
		t.Fatalf("%v\n%s", err, said)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	calls := callsBetween(string(raw), hitsFrom, hitsTo)
	reads := calls["pread64"] + calls["preadv"] + calls["preadv2"]
	if want := hits * 2; reads < want || reads > want+10 {
		t.Errorf("%d hits took %d reads, and should take %d: block and head", hits, reads, want)
	}
	for name, n := range calls {
		switch name {
		case "pread64", "preadv", "preadv2":
		case "epoll_pwait", "epoll_ctl", "read", "write", "mmap", "munmap": // the runtime's own
		default:
			t.Errorf("%s was called %d times", name, n)
		}
	}
	if callsBetween(string(raw), "", "")["openat"] == 0 {
		t.Error("the trace has no openat at all: is it one?")
	}
}

var call = regexp.MustCompile(`^\d+ +([a-z0-9_]+)\(`)

// callsBetween counts the calls between two that mention these words.
func callsBetween(trace, from, to string) map[string]int {
	counts := map[string]int{}
	counting := from == ""
	for line := range strings.Lines(trace) {
		if from != "" && strings.Contains(line, from) {
			counting = true
			continue
		}
		if to != "" && strings.Contains(line, to) {
			break
		}
		if m := call.FindStringSubmatch(line); m != nil && counting {
			counts[m[1]]++
		}
	}
	return counts
}
