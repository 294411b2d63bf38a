package blockfiles

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The age of a file is that of its content or of its name, whichever is later: one that was
// copied with its times is new. One that is old may be of a host whose clock is behind: so it goes if it was the same
// when the sweep before looked.
func TestAge(t *testing.T) {
	for name, c := range map[string]struct {
		written time.Duration // before now
		looked  time.Duration // after now
		changes bool          // it is written between the sweeps
		left    [2]bool       // after each sweep
	}{
		"new":                      {0, time.Minute, false, [2]bool{true, true}},
		"restored":                 {time.Hour, time.Minute, false, [2]bool{true, true}},
		"restored, and left":       {time.Hour, 11 * time.Minute, false, [2]bool{true, false}},
		"old":                      {0, 11 * time.Minute, false, [2]bool{true, false}},
		"of a clock that's behind": {0, 3 * time.Hour, true, [2]bool{true, true}},
		"two days old":             {0, 48 * time.Hour, false, [2]bool{false, false}},
		"with a time that's ahead": {-time.Hour, 11 * time.Minute, false, [2]bool{true, true}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Store{o: Options{SweepAge: 10 * time.Minute}}
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			now := st.ModTime()
			if err := os.Chtimes(path, now.Add(-c.written), now.Add(-c.written)); err != nil {
				t.Fatal(err)
			}
			for i, want := range c.left {
				s.leftovers.begin()
				s.removeOld(path, now.Add(c.looked))
				if exists(path) != want {
					t.Errorf("%s, sweep %d: stays: %v", name, i+1, !want)
				}
				time.Sleep(11 * time.Minute)
				if c.changes {
					if err := os.WriteFile(path, []byte("more"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}
