package checksums

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// patience bounds a wait for the daemon on a machine that is busy.
const patience = 30 * time.Second

// Entries of engines in which damage was found get another name, so that the engine misses them and writes them again
// while the damaged one is still open. What nobody knows, and what was never right, stays.
func TestSetsDamageAside(t *testing.T) {
	const entry, unknown = "vllm-SEP-model@2@1@3fa9c1@half.data", "weights.bin"
	d := daemontest.ServeWith(t, places(t)["kernel"])
	c := newClient(t, d.Mount)
	defer c.close()
	rng := newRand(t)
	content := random(rng, 2*rangeBytes+17)
	write := func(name string) {
		t.Helper()
		path := filepath.Join(d.Mount, name)
		f, err := os.OpenFile(path+".part", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		c.ringWrite(f, content, 0)
		if err := errors.Join(f.Close(), os.Rename(path+".part", path)); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (names []string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(d.Mount, "models"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	// spoil has a ring read a file as it is, then damages it, and reads it again, until the daemon is certain. It returns
	// the file if it is still open.
	spoil := func(name string) *os.File {
		t.Helper()
		// The kernel tells the daemon of the writer's close in its own time, and only a read that begins after that
		// proves something.
		tried := false
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			f, err := os.Open(filepath.Join(d.Mount, name))
			if tried && errors.Is(err, os.ErrNotExist) { // it has another name by now
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			tried = true
			if got, err := c.ringRead(f, 0, iovBytes); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
			if names := list(); time.Now().After(end) || len(names) > 2 {
				t.Fatalf("%v", names)
			}
			err = tryDamage(t, filepath.Join(d.Data, name), rangeBytes+1)
			if err == nil {
				if _, err := c.ringRead(f, 0, iovBytes); !errors.Is(err, syscall.EIO) {
					t.Fatalf("%s: damage was served", name)
				}
				err = tryDamage(t, filepath.Join(d.Data, name), rangeBytes+1)
			}
			switch {
			case errors.Is(err, os.ErrNotExist): // the same
				return f
			case err != nil:
				t.Fatal(err)
			}
			f.Close()
		}
	}
	if err := os.Mkdir(filepath.Join(d.Mount, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("models/" + unknown)
	write("models/" + entry)
	old := spoil("models/" + entry)
	defer old.Close()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(d.Data, "models", entry)); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it has kept its name: %v\n%s", list(), d.Log())
		}
	}
	if _, err := os.Open(filepath.Join(d.Mount, "models", entry)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its name in the mount: %v", err)
	}
	names := list()
	if len(names) != 2 {
		t.Fatalf("entries %v", names)
	}
	if was, ok := kv3fs.IsAside(names[0]); !ok || was != entry {
		t.Errorf("entries %v", names)
	}
	if old != nil {
		if got, err := c.ringRead(old, 0, rangeBytes); err != nil || !bytes.Equal(got, content[:rangeBytes]) {
			t.Errorf("good bytes of the damaged file, which is open: %v", err)
		}
	}
	write("models/" + entry)
	f, err := os.Open(filepath.Join(d.Mount, "models", entry))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := c.ringRead(f, 0, iovBytes); err != nil || !bytes.Equal(got, content) {
		t.Errorf("written again: %d bytes, %v", len(got), err)
	}
	// Its damage is served to nobody who has it open; once nobody has, it is served as it is.
	aside, back := filepath.Join(d.Mount, "models", names[0]), filepath.Join(d.Mount, "models", "looked-at")
	damage(t, filepath.Join(d.Data, "models", names[0]), 5)
	if old != nil {
		if _, err := c.ringRead(old, 0, rangeBytes); !errors.Is(err, syscall.EIO) {
			t.Errorf("a damaged range of the damaged file, which is open: %v", err)
		}
		old.Close()
	}
	if err := os.Rename(aside, back); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f, err := os.Open(back)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.ringRead(f, 0, iovBytes)
		f.Close()
		if err == nil && len(got) == len(content) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the damaged file under another name: %d bytes, %v", len(got), err)
		}
	}
	if err := os.Remove(back); err != nil {
		t.Fatal(err)
	}
	damage(t, filepath.Join(d.Data, "models", unknown), 5)
	u, err := os.Open(filepath.Join(d.Mount, "models", unknown))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := c.ringRead(u, 0, iovBytes); !errors.Is(err, syscall.EIO) {
		t.Errorf("damage of an unknown file: %v", err)
	}
	if names := list(); len(names) != 2 {
		t.Errorf("entries %v", names)
	}
}
