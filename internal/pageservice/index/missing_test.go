package index

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// Where the newest meta page of the file is damaged, the last change is missing. It may
// have given the page of any key to another: nobody must be sent there, and nobody gets
// it, before its users have stopped using it. That holds after another restart, too.
func TestDamageThatHidesTheLastChange(t *testing.T) {
	dir, clock, full := t.TempDir(), time.Unix(1_800_000_000, 0), false
	var log bytes.Buffer
	o := Options{Now: func() time.Time { return clock }, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	o.Options = o.WithDefaults()
	disk := journal.Options{Commit: func(commit func() error) error {
		if full {
			return syscall.ENOSPC
		}
		return commit()
	}}
	var x *Index
	start := func() {
		t.Helper()
		var err error
		if x, err = openWith(dir, disk, o); err != nil {
			t.Fatal(err)
		}
	}
	reserve := func(key string, want int64) {
		t.Helper()
		g, err := x.Reserve(ctx, modelSpace, 0, []string{key}, false)
		if err != nil || g[0].Page != want {
			t.Fatalf("%s: %+v, %v; want page %d", key, g, err, want)
		}
	}
	lost := func() {
		t.Helper()
		if at, err := x.Locate(ctx, modelSpace, 0, []string{"a"}); err != nil || at[0] != pageservice.None {
			t.Fatalf("a is said to be in page %d, which has the bytes of b; %v", at[0], err)
		}
	}
	stop := func() {
		t.Helper()
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}

	start()
	if _, err := x.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 1}); err != nil {
		t.Fatal(err)
	}
	reserve("a", 0)
	if _, err := x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: 0}}, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, journal.FileName)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(time.Hour)
	reserve("b", 0) // whose writer writes from now on
	stop()

	// The meta page that the last change has written.
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, os.Getpagesize()} {
		if !bytes.Equal(file[at:at+80], before[at:at+80]) {
			file[at+64] ^= 1
		}
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}

	full = true
	if _, err := openWith(dir, disk, o); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatal("what was forgotten could not be logged:", err)
	}
	full = false
	for range 3 {
		start()
		lost()
		reserve("c", pageservice.None)
		clock = clock.Add(o.Reserve)
		reserve("c", pageservice.None)
		stop()
	}
	start()
	lost()
	clock = clock.Add(o.Reserve + o.Quarantine)
	reserve("c", 0)
	stop()
	if n := strings.Count(log.String(), "forgets all keys"); n != 2 || !strings.Contains(log.String(), path) {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}
