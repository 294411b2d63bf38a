package blockfiles

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The age of a file is that of its content or of its name, whichever is later: one that was
// copied with its times is new.
func TestAge(t *testing.T) {
	s := &Store{o: Options{SweepAge: 10 * time.Minute}}
	for name, c := range map[string]struct {
		written time.Duration // before now
		looked  time.Duration // after now
		stays   bool
	}{
		"new":                      {0, time.Minute, true},
		"restored":                 {time.Hour, time.Minute, true},
		"restored, and left":       {time.Hour, 11 * time.Minute, false},
		"old":                      {0, 11 * time.Minute, false},
		"with a time that's ahead": {-time.Hour, 11 * time.Minute, true},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if err := os.Chtimes(path, now.Add(-c.written), now.Add(-c.written)); err != nil {
			t.Fatal(err)
		}
		s.removeOld(path, now.Add(c.looked))
		if exists(path) != c.stays {
			t.Errorf("%s: stays: %v", name, !c.stays)
		}
	}
}
