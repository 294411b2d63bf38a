package blockfiles

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// A block that is open is loaded while every goroutine that opens files is in a call.
func TestOpenBlockWaitsForNoOpen(t *testing.T) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	s, _ := openCounting(t, Options{Layout: l, OpenFiles: 2, Opens: 1})
	shards := l.ByBlock([]kv.Key{{1}}, [][]byte{make([]byte, 1000)})
	task, err := s.Save(t.Context(), shards)
	wait(t, task, err)
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
	release := make(chan struct{})
	s.opens.Go(workerpool.Job{Run: func() { <-release }})
	defer close(release)
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
}

// The host's limit of open files is met as the process's own is.
func TestOpenIsRetried(t *testing.T) {
	s, _ := openCounting(t, Options{Layout: kv.Layout{BlockBytes: 1000, ShardBytes: 1000}})
	for _, limit := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		calls := 0
		f, err := s.retryOpen(func() (*os.File, error) {
			if calls++; calls == 1 {
				return nil, &os.PathError{Op: "open", Path: "f", Err: limit}
			}
			return os.Open(os.DevNull)
		})
		if err != nil || calls != 2 {
			t.Errorf("%v: %d calls, %v", limit, calls, err)
			continue
		}
		f.Close()
		if err := s.explain(limit); !strings.Contains(err.Error(), "raise the") {
			t.Errorf("no cure is named: %v", err)
		}
	}
}

// The table of descriptors is large enough before the first load: while it grows, loads wait.
func TestDescriptorsAreReady(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const places = 1000
	const want = places * descriptorsPerPlace / 2
	if limit.Cur <= want {
		t.Skipf("only %d files may be open", limit.Cur)
	}
	openCounting(t, Options{Layout: kv.Layout{BlockBytes: 1000, ShardBytes: 1000}, Places: places})
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var have int
	_, after, _ := strings.Cut(string(raw), "FDSize:")
	if _, err := fmt.Sscan(after, &have); err != nil || have < want {
		t.Errorf("the table has room for %d descriptors, want %d; %v", have, want, err)
	}
}
