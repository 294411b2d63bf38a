package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// However many writes fail, a full disk is said once, and once that it has room again. TestAdminListen fills a real one.
func TestDiskFull(t *testing.T) {
	var out bytes.Buffer
	d := newDiskFull(newDataSpace("/data"), slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Now()
	look := func(s space, later time.Duration) (said string) {
		out.Reset()
		now = now.Add(later)
		d.found(s, now)
		return out.String()
	}
	roomy, full, noFiles := space{bytes: 1 << 40, freeBytes: 1 << 39, files: 100, freeFiles: 50}, space{bytes: 1 << 40, files: 100, freeFiles: 50}, space{bytes: 1 << 40, freeBytes: 1 << 39, files: 100}
	silent := func(what, said string) {
		t.Helper()
		if said != "" {
			t.Errorf("%s: %s", what, said)
		}
	}
	says := func(want, said string) {
		t.Helper()
		if !strings.Contains(said, want) || strings.Count(said, "\n") != 1 {
			t.Errorf("%q in place of %s", said, want)
		}
	}
	silent("room", look(roomy, 0))
	says("is full", look(full, time.Second))
	for range 100 {
		d.failed()
		silent("still full", look(full, time.Second))
	}
	silent("just room", look(roomy, time.Second)) // writes may still fail
	silent("half room", look(space{bytes: 1 << 40, freeBytes: leastFree + 1, files: 1, freeFiles: 1}, time.Hour))
	says("has room again", look(roomy, time.Hour))
	if !strings.Contains(out.String(), "failed_ring_writes=100") {
		t.Error(out.String())
	}
	says("is full", look(noFiles, time.Second))
	says("has room again", look(roomy, time.Second))
	d.failed()
	silent("an engine has removed what found no room", look(roomy, time.Second))
	d.failed()
	silent("and another one", look(space{bytes: 1 << 40, freeBytes: muchFree - 1, files: 1, freeFiles: 1}, fullEvery))
	d.failed()
	says("although its disk has room", look(roomy, time.Second))
	silent("a while later", look(roomy, time.Second))
	says("has room again", look(roomy, time.Hour))
	silent("room", look(roomy, time.Hour))
	little := space{bytes: 1 << 40, freeBytes: muchFree - 1, files: 1, freeFiles: 1}
	for range fullQuiet / time.Second {
		d.failed()
		silent("engines may have removed what they wrote", look(little, time.Second))
	}
	d.failed()
	says("its disk has little room", look(little, time.Second))
	d.failed()
	silent("said", look(little, time.Second))
	says("has room again", look(little, fullQuiet))
}

// However often writes fail, the file system is asked ten times a second at most, and once a second while it is known to be full.
func TestFullDiskIsNotAskedForEachWrite(t *testing.T) {
	for name, c := range map[string]struct {
		is   space
		most int // in ten seconds
	}{
		"full":     {space{bytes: 1 << 40}, 15},
		"not full": {space{bytes: 1 << 40, freeBytes: muchFree - 1}, 110},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDiskFull(newDataSpace("/data"), slog.New(slog.DiscardHandler))
				var asked int
				var answered time.Time
				d.ask = func(_ context.Context, age time.Duration) (space, error) {
					if answered.IsZero() || time.Since(answered) > age || age == 0 {
						asked++
						time.Sleep(time.Millisecond)
						answered = time.Now()
					}
					return c.is, nil
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { d.run(ctx) })
				for range 100_000 {
					d.failed()
					time.Sleep(100 * time.Microsecond)
				}
				stop()
				running.Wait()
				if asked < 5 || asked > c.most {
					t.Errorf("the file system was asked %d times, at most %d wanted", asked, c.most)
				}
			})
		})
	}
}
