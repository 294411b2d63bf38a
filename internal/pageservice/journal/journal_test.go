package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// open starts the journal in dir, whose owner needs every record, and returns the
// records that it had.
func open(t *testing.T, dir string, o Options) (*Journal, []string) {
	t.Helper()
	return openFor(t, dir, o, keepAll)
}

// keepAll is an owner that never lets compaction begin.
var keepAll = pageservice.LogOwner{LiveBytes: func() int64 { return 1 << 40 }}

func openFor(t *testing.T, dir string, o Options, owner pageservice.LogOwner) (*Journal, []string) {
	t.Helper()
	j, recs, err := start(dir, o, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, recs
}

func start(dir string, o Options, owner pageservice.LogOwner) (j *Journal, recs []string, err error) {
	owner.Replay = func(rec []byte) error { recs = append(recs, string(rec)); return nil }
	owner.Replayed = func() error { return nil }
	if owner.Missing == nil {
		owner.Missing = func(string) {}
	}
	j = New(dir, o)
	return j, recs, j.Start(owner)
}

func writeAll(j *Journal, recs ...string) error {
	var all [][]byte
	for _, r := range recs {
		all = append(all, []byte(r))
	}
	return j.Append(func(error) {}, all...)(context.Background())
}

func TestRecordsComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	j, recs := open(t, dir, Options{})
	if len(recs) != 0 {
		t.Fatal(recs)
	}
	var want []string
	for i := range 300 {
		rec := fmt.Sprint(i, strings.Repeat("x", i*i))
		want = append(want, rec)
		if err := writeAll(j, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, recs = open(t, dir, Options{}); !slices.Equal(recs, want) {
		t.Fatal("other records came back")
	}
}

// Writes that wait together share a commit, and their outcomes come in order.
func TestWaitingWritesShareACommit(t *testing.T) {
	commits := 0
	gate := make(chan struct{})
	j, _ := open(t, t.TempDir(), Options{Commit: func(commit func() error) error {
		commits++
		<-gate
		return commit()
	}})
	var done []int
	var last func(context.Context) error
	for i := range 100 {
		last = j.Append(func(err error) {
			if err == nil {
				done = append(done, i)
			}
		}, []byte{byte(i)})
	}
	close(gate)
	if err := last(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(done) != 100 || !slices.IsSorted(done) {
		t.Error(done)
	}
	if commits > 2 {
		t.Errorf("%d commits", commits)
	}
}

func TestFailedCommitChangesNothingAndLaterOnesSucceed(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("broken")
	fail := false
	j, _ := open(t, dir, Options{Commit: func(commit func() error) error {
		if fail {
			return broken
		}
		return commit()
	}})
	for i := range 6 {
		fail = i%2 == 1
		if err := writeAll(j, fmt.Sprint(i)); fail != errors.Is(err, broken) {
			t.Fatal(i, err)
		}
	}
	_ = j.Close()
	if _, recs := open(t, dir, Options{}); !slices.Equal(recs, []string{"0", "2", "4"}) {
		t.Fatal(recs)
	}
}

// A commit that fails in its last step may be on the disk or not: then the journal
// promises nothing any more.
func TestNothingIsWrittenAfterAnUnknownOutcome(t *testing.T) {
	lost := errors.New("lost")
	first := true
	j, _ := open(t, t.TempDir(), Options{Commit: func(commit func() error) error {
		err := commit()
		if first {
			first = false
			return lost
		}
		return err
	}})
	for range 2 {
		if err := writeAll(j, "x"); !errors.Is(err, lost) {
			t.Fatal(err)
		}
	}
}

func TestCompactionKeepsWhatIsNeeded(t *testing.T) {
	dir := t.TempDir()
	live := map[string]bool{}
	owner := pageservice.LogOwner{
		LiveBytes: func() int64 { return int64(len(live) * 100) },
		Keep: func(rec []byte) [][]byte {
			if live[string(rec)] {
				return [][]byte{slices.Clone(rec)}
			}
			return nil
		},
	}
	j, _ := openFor(t, dir, Options{SlackBytes: 1000}, owner)
	for i := range 2000 {
		rec := fmt.Sprintf("%0100d", i)
		if i%100 == 0 {
			// It is live once its outcome is known, not before.
			wait := j.Append(func(error) { live[rec] = true }, []byte(rec))
			if err := wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		} else if err := writeAll(j, rec); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	_, recs := open(t, dir, Options{})
	for rec := range live {
		if !slices.Contains(recs, rec) {
			t.Errorf("%s is gone", rec)
		}
	}
	if len(recs) > 60 {
		t.Errorf("%d records for %d live ones", len(recs), len(live))
	}
	info, err := os.Stat(filepath.Join(dir, FileName))
	if err != nil || info.Size() > 1<<20 {
		t.Error(info.Size(), err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	gate := make(chan struct{})
	entered := make(chan struct{}, 8)
	j, _ := open(t, t.TempDir(), Options{Commit: func(commit func() error) error {
		entered <- struct{}{}
		<-gate
		return commit()
	}})
	taken := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	w1 := j.Append(func(err error) { taken <- err }, []byte("at work"))
	<-entered
	var withdrawn error
	w2 := j.Append(func(err error) { withdrawn = err }, []byte("waiting"))
	cancel()
	for _, wait := range []func(context.Context) error{w1, w2} {
		if err := wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if !errors.Is(withdrawn, context.Canceled) {
		t.Error("a write that had not begun was not given up:", withdrawn)
	}
	close(gate)
	if err := <-taken; err != nil {
		t.Error("a write that had begun failed:", err)
	}
}

func TestClosedLogRefuses(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	for range 2 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeAll(j, "x"); !errors.Is(err, pageservice.ErrClosed) {
		t.Fatal(err)
	}
}

func TestAFileInUseIsReportedWithItsProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, Options{})
	_, _, err := start(dir, Options{LockTimeout: 10 * time.Millisecond}, keepAll)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Fatal(err)
	}
}
