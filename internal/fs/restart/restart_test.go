package restart

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// place returns a directory in a tmpfs.
func place(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp("/dev/shm", "kv3fs-restart-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	return filepath.Join(top, "state")
}

var mine = Identity{Boot: "b", Data: "d", Format: 3}

func open(t *testing.T, path string, id Identity) *Dir {
	t.Helper()
	d, err := Open(path, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestStateIsOfOneIdentity(t *testing.T) {
	path := place(t)
	d := open(t, path, mine)
	if d.Prior() || d.Discarded() != "" {
		t.Errorf("a new directory: prior %v, discarded %q", d.Prior(), d.Discarded())
	}
	if err := d.Write("a", 1, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, mine); !errors.Is(err, ErrInUse) {
		t.Errorf("a second daemon: %v", err)
	}
	d.Close()
	d = open(t, path, mine)
	if version, b, err := d.Read("a"); !d.Prior() || version != 1 || string(b) != "text" || err != nil {
		t.Errorf("prior %v: version %d, %q, %v", d.Prior(), version, b, err)
	}
	d.Close()
	for _, c := range []struct {
		id   Identity
		says string
	}{{Identity{"other", "d", 3}, "boot"}, {Identity{"b", "other", 3}, "data directory"}, {Identity{"b", "d", 4}, "format 3, this version has 4"}, {Identity{"b", "d", 2}, "format 3, this version has 2"}} {
		d := open(t, path, mine)
		if err := d.Write("a", 1, nil); err != nil {
			t.Fatal(err)
		}
		d.Close()
		if says := Differs(path, c.id); !strings.Contains(says, c.says) {
			t.Errorf("%v: %q", c.id, says)
		}
		d = open(t, path, c.id)
		_, _, err := d.Read("a")
		if d.Prior() || !strings.Contains(d.Discarded(), c.says) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: prior %v, discarded %q, file %v", c.id, d.Prior(), d.Discarded(), err)
		}
		d.Close()
		open(t, path, mine).Close() // the next case begins with this again
	}
}

// Whatever becomes of the identity's file, the daemon starts, with all of the state or with none.
func TestDamagedIdentity(t *testing.T) {
	path := place(t)
	open(t, path, mine).Close()
	whole, err := os.ReadFile(filepath.Join(path, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string][]byte{"empty": {}, "cut": whole[:len(whole)-1], "longer": append(slices.Clone(whole), 0)}
	for i := range whole {
		b := slices.Clone(whole)
		b[i] ^= 1
		damage["bit of byte "+string(rune('0'+i))] = b
	}
	for name, b := range damage {
		if err := os.WriteFile(filepath.Join(path, identityFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		d := open(t, path, mine)
		if d.Prior() || d.Discarded() == "" {
			t.Errorf("%s: prior %v, discarded %q", name, d.Prior(), d.Discarded())
		}
		d.Close()
	}
}

func TestUnsafeDirectory(t *testing.T) {
	path := place(t)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, mine); err == nil {
		t.Error("a directory that others can look into was used")
	}
	if err := os.Symlink(t.TempDir(), path+"-link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path+"-link", mine); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func TestNamesLeaveOutWhatWasBeingWritten(t *testing.T) {
	d := open(t, place(t), mine)
	if err := d.Make("r"); err != nil {
		t.Fatal(err)
	}
	if err := d.Write("r/a", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("r/b.new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := d.Names("r"); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := d.Names("none"); err != nil || names != nil {
		t.Errorf("no directory: %q, %v", names, err)
	}
	if err := d.Clear(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Clear: %v", err)
	}
}

// records opens the log and returns what is in it.
func records(d *Dir) (l *Log, all []string, err error) {
	l, err = d.OpenLog("log", 7, func(b []byte) error { all = append(all, string(b)); return nil })
	return l, all, err
}

func TestLog(t *testing.T) {
	d := open(t, place(t), mine)
	l, all, err := records(d)
	if err != nil || all != nil {
		t.Fatalf("%q, %v", all, err)
	}
	for _, r := range []string{"one", "", "three"} {
		if err := l.Append([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.AppendAll([][]byte{[]byte("four"), []byte("five")}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l, all, err = records(d)
	if err != nil || !slices.Equal(all, []string{"one", "", "three", "four", "five"}) {
		t.Fatalf("%q, %v", all, err)
	}
	err = l.Compact(func(add func([]byte) error) error { return errors.Join(add([]byte("A")), add([]byte("B"))) })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]byte("C")); err != nil {
		t.Fatal(err)
	}
	if at, err := os.Stat(d.Path("log")); err != nil || at.Size() != l.Bytes() {
		t.Errorf("%v: %d bytes, counted %d", err, at.Size(), l.Bytes())
	}
	if err := l.Compact(func(func([]byte) error) error { return errors.New("no") }); err == nil {
		t.Error("a failed compaction succeeded")
	}
	l.Close()
	l, all, err = records(d)
	if err != nil || !slices.Equal(all, []string{"A", "B", "C"}) {
		t.Fatalf("%q, %v", all, err)
	}
	l.Close()
}

// However a log was cut, what remains are its first records; a changed byte is noticed.
func TestCutAndDamagedLogs(t *testing.T) {
	d := open(t, place(t), mine)
	var whole []byte
	want := []string{"one", "two", "three"}
	for _, r := range want {
		whole = appendFrame(whole, 7, []byte(r))
	}
	for n := range len(whole) {
		if err := os.WriteFile(d.Path("log"), whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l, all, err := records(d)
		if err != nil || !slices.Equal(all, want[:len(all)]) || len(all) == len(want) {
			t.Fatalf("cut to %d bytes: %q, %v", n, all, err)
		}
		if err := l.Append([]byte("next")); err != nil {
			t.Fatal(err)
		}
		l.Close()
		l, again, err := records(d)
		if err != nil || !slices.Equal(again, append(all, "next")) {
			t.Fatalf("cut to %d bytes, after another record: %q, %v", n, again, err)
		}
		l.Close()
	}
	for i := range whole {
		b := slices.Clone(whole)
		b[i] ^= 0x40
		if err := os.WriteFile(d.Path("log"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, all, err := records(d)
		if !slices.Equal(all, want[:len(all)]) || len(all) == len(want) {
			t.Fatalf("byte %d changed: %q", i, all)
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if err != nil && l.Bytes() != 0 {
			t.Errorf("byte %d changed: %d bytes remain", i, l.Bytes())
		}
		l.Close()
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, 1, []byte("one")), 1, nil))
	f.Add([]byte{3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for rest := b; ; {
			version, payload, next, err := cutFrame(rest)
			if err != nil {
				return
			}
			if again := appendFrame(nil, version, payload); !bytes.Equal(again, rest[:len(rest)-len(next)]) {
				t.Fatalf("%x decodes to %d, %x, which encodes to %x", rest, version, payload, again)
			}
			rest = next
		}
	})
}
