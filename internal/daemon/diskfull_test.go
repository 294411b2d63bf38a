package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
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
}
