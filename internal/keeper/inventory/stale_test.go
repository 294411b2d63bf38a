package inventory

import (
	"os"
	"path/filepath"
	"testing"
)

// What a scan has read of an entry counts for nothing once an event has come in between.
func TestStaleEntries(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := New(root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	file, err := statAt(v.fd, "file")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := statAt(v.fd, "dir")
	if err != nil {
		t.Fatal(err)
	}
	k, dk := keyOf(&file), keyOf(&dir)
	for name, event := range map[string]func(){
		"removed":         func() { v.Removed(k, v.key, "file", true) },
		"renamed":         func() { v.Renamed(k, v.key, "file", v.key, "other") },
		"settled unknown": func() { v.Settle(k, 0, 5) },
		"closed unknown":  func() { v.Closed(k, 5) },
	} {
		before := v.Changes(k)
		event()
		if v.found(k, v.Root(), "file", &file, before) {
			t.Errorf("%s: an entry from before was taken in", name)
		}
	}
	v.Created(k, v.key, "file", false)
	for name, event := range map[string]func(){
		"settled":           func() { v.Settle(k, 0, 5) },
		"a use has ended":   func() { v.Opened(k, v.key, "file"); v.Closed(k, 5) },
		"a claim has ended": func() { v.Claim(k, 5, false); v.Settle(k, 5, 5) },
	} {
		before := v.Changes(k)
		event()
		if v.found(k, v.Root(), "file", &file, before) {
			t.Errorf("%s: an entry from before was taken in", name)
		}
	}
	sc := &scan{v: v}
	if !sc.directory(v.Root(), "dir", &dir, v.dirs.moves.Load(), 0) {
		t.Error("an entry was not taken in although there was no event")
	}
	before := v.dirs.moves.Load()
	v.Removed(dk, v.key, "dir", true)
	if sc.directory(v.Root(), "dir", &dir, before, 0) || v.Directories() != 1 {
		t.Error("a directory that was removed is back")
	}
}
