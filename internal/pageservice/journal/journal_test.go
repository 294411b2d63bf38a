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
)

// open opens the log in dir and returns what it says.
func open(t *testing.T, dir string, o Options) (*Journal, []string) {
	t.Helper()
	j, said, err := openFile(filepath.Join(dir, "log.db"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, said
}

func openFile(path string, o Options) (j *Journal, said []string, err error) {
	j, err = Open(path, o, func(rec []byte) error { said = append(said, string(rec)); return nil })
	return j, said, err
}

func write(j *Journal, recs ...string) error {
	var all [][]byte
	for _, r := range recs {
		all = append(all, []byte(r))
	}
	return j.Begin(func(error) {}, all...).Wait(context.Background())
}

func TestRecordsComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	j, said := open(t, dir, Options{})
	if len(said) != 0 {
		t.Fatal(said)
	}
	var want []string
	for i := range 300 {
		rec := fmt.Sprint(i, strings.Repeat("x", i*i))
		want = append(want, rec)
		if err := write(j, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, said = open(t, dir, Options{}); !slices.Equal(said, want) {
		t.Fatal("the log says something else")
	}
}

// Writes that wait together are written together, and told in order.
func TestWaitingWritesShareACommit(t *testing.T) {
	commits := 0
	gate := make(chan struct{})
	j, _ := open(t, t.TempDir(), Options{Commit: func(commit func() error) error {
		commits++
		<-gate
		return commit()
	}})
	var told []int
	var last *Write
	for i := range 100 {
		last = j.Begin(func(err error) {
			if err == nil {
				told = append(told, i)
			}
		}, []byte{byte(i)})
	}
	close(gate)
	if err := last.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(told) != 100 || !slices.IsSorted(told) {
		t.Error(told)
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
		if err := write(j, fmt.Sprint(i)); fail != errors.Is(err, broken) {
			t.Fatal(i, err)
		}
	}
	_ = j.Close()
	if _, said := open(t, dir, Options{}); !slices.Equal(said, []string{"0", "2", "4"}) {
		t.Fatal(said)
	}
}

// A commit that fails in its last step may be on the disk or not: then nothing is
// promised any more.
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
		if err := write(j, "x"); !errors.Is(err, lost) {
			t.Fatal(err)
		}
	}
}

func TestCompactionKeepsWhatIsNeeded(t *testing.T) {
	dir := t.TempDir()
	live := map[string]bool{}
	o := Options{
		SlackBytes: 1000,
		Live:       func() int64 { return int64(len(live) * 100) },
		Keep: func(rec []byte) [][]byte {
			if live[string(rec)] {
				return [][]byte{slices.Clone(rec)}
			}
			return nil
		},
	}
	j, _ := open(t, dir, o)
	for i := range 2000 {
		rec := fmt.Sprintf("%0100d", i)
		if i%100 == 0 {
			// It is live from the moment it is told, not before.
			w := j.Begin(func(error) { live[rec] = true }, []byte(rec))
			if err := w.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		} else if err := write(j, rec); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	_, said := open(t, dir, Options{})
	for rec := range live {
		if !slices.Contains(said, rec) {
			t.Errorf("%s is gone", rec)
		}
	}
	if len(said) > 60 {
		t.Errorf("%d records for %d live ones", len(said), len(live))
	}
	info, err := os.Stat(filepath.Join(dir, "log.db"))
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
	w1 := j.Begin(func(err error) { taken <- err }, []byte("at work"))
	<-entered
	var withdrawn error
	w2 := j.Begin(func(err error) { withdrawn = err }, []byte("waiting"))
	cancel()
	for _, w := range []*Write{w1, w2} {
		if err := w.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if !errors.Is(withdrawn, context.Canceled) {
		t.Error("a write that was not begun was not given up:", withdrawn)
	}
	close(gate)
	if err := <-taken; err != nil {
		t.Error("the disk was at work on it, and it failed:", err)
	}
}

func TestClosedLogRefuses(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	for range 2 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(j, "x"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestFileInUseIsNamedWithItsUser(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, Options{})
	_, _, err := openFile(filepath.Join(dir, "log.db"), Options{LockTimeout: 10 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Fatal(err)
	}
}

// Whatever byte of the file is wrong, the log either says what was written or is
// refused; it never says something else, and never ends the process.
func TestDamageIsNeverServed(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	var want []string
	for i := range 60 {
		rec := fmt.Sprintf("record %d %s", i, strings.Repeat("y", i*97))
		want = append(want, rec)
		if err := write(j, rec); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	whole, err := os.ReadFile(filepath.Join(dir, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) ([]string, error) {
		path := filepath.Join(t.TempDir(), "log.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		j, said, err := openFile(path, Options{})
		if err != nil {
			return nil, err
		}
		return said, j.Close()
	}
	refused := 0
	for at := 0; at < len(whole); at += 211 {
		damaged := slices.Clone(whole)
		damaged[at] ^= 0x55
		said, err := read(damaged)
		switch {
		case errors.Is(err, ErrCorrupt):
			refused++
		case err != nil:
			t.Errorf("byte %d: %v", at, err)
		case !slices.Equal(said, want):
			// A damaged record of the last commit's alternative is no damage: the
			// file has two headers, and the older may count.
			if len(said) != len(want)-1 || !slices.Equal(said, want[:len(want)-1]) {
				t.Errorf("byte %d: %d records of %d, and no error", at, len(said), len(want))
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
	for _, size := range []int{0, 1, 4096, len(whole) / 2, len(whole) - 4096} {
		if said, err := read(whole[:size]); err == nil && len(said) != 0 && !slices.Equal(said, want) {
			t.Errorf("cut to %d bytes: %d records, and no error", size, len(said))
		}
	}
}
