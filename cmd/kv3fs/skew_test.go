package main

import (
	"bytes"
	"context"
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// stateChange makes of a file of the state of restarts what another version would have left, or an accident.
type stateChange func(t *testing.T, whole []byte) []byte

// stateRecords passes the version and the payload of each record of a file to change, and writes them anew.
func stateRecords(change func(t *testing.T, version uint32, payload []byte) (uint32, []byte)) stateChange {
	return func(t *testing.T, rest []byte) (made []byte) {
		if len(rest) == 0 {
			t.Fatal("there is no record")
		}
		for len(rest) > 0 {
			n := int(endian.LittleEndian.Uint32(rest))
			version, payload := change(t, endian.LittleEndian.Uint32(rest[4:]), slices.Clone(rest[8:8+n]))
			begin := len(made)
			made = endian.LittleEndian.AppendUint32(made, uint32(len(payload)))
			made = endian.LittleEndian.AppendUint32(made, version)
			made = append(made, payload...)
			made = endian.LittleEndian.AppendUint64(made, xxh3.Hash(made[begin:]))
			rest = rest[8+n+8:]
		}
		return made
	}
}

// ofVersion gives all records a version that is greater by so much.
func ofVersion(more int) stateChange {
	return stateRecords(func(_ *testing.T, version uint32, payload []byte) (uint32, []byte) {
		return uint32(int(version) + more), payload
	})
}

// withField changes a field of a record that is JSON, and the record's version by so much.
func withField(key string, more int, change func(value json.RawMessage) any) stateChange {
	return stateRecords(func(t *testing.T, version uint32, payload []byte) (uint32, []byte) {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(payload, &fields); err != nil || fields[key] == nil {
			t.Fatalf("%q in %s: %v", key, payload, err)
		}
		text, err := json.Marshal(change(fields[key]))
		if err != nil {
			t.Fatal(err)
		}
		fields[key] = text
		if payload, err = json.Marshal(fields); err != nil {
			t.Fatal(err)
		}
		return uint32(int(version) + more), payload
	})
}

func ofFormat(more int) stateChange {
	return withField("format", more, func(value json.RawMessage) any { return int(value[0]-'0') + more })
}

func withText(key, text string) stateChange {
	return withField(key, 0, func(json.RawMessage) any { return text })
}

// withAnswer changes a byte of what the kernel was told when the mount was made.
func withAnswer(at int) stateChange {
	return withField("answer", 0, func(value json.RawMessage) any {
		var answer []byte
		if json.Unmarshal(value, &answer) != nil || len(answer) <= at {
			return nil
		}
		answer[at] ^= 1
		return answer
	})
}

func cutShort(_ *testing.T, whole []byte) []byte { return whole[:len(whole)-1] }

func changeFirst(_ *testing.T, whole []byte) []byte {
	whole[0] ^= 1
	return whole
}

func changeMiddle(_ *testing.T, whole []byte) []byte {
	whole[len(whole)/2] ^= 0x40
	return whole
}

// skews are states that a daemon would not go on with. A directory stands for the file in it.
var skews = []struct {
	name, file string
	change     stateChange
	says       string
}{
	{"a later format", "identity", ofFormat(+1), "it has format 2, this version has 1"},
	{"an earlier format", "identity", ofFormat(-1), "it has format 0, this version has 1"},
	{"another boot", "identity", withText("boot", "other"), "it is of an earlier boot of this kernel"},
	{"another data directory", "identity", withText("data", "other"), "it is of another data directory: other, not inode "},
	{"identity cut short", "identity", cutShort, "it cannot be read"},
	{"mount of a later version", "mount", ofVersion(+1), "its record has format 2, this version has 1"},
	{"mount of an earlier version", "mount", ofVersion(-1), "its record has format 0, this version has 1"},
	{"mount cut short", "mount", cutShort, "damaged"},
	{"another protocol", "mount", withAnswer(20), "its protocol version is 0x"},
	{"another read-ahead", "mount", withAnswer(24), "its read-ahead is 0x"},
	{"other capabilities", "mount", withAnswer(28), "its set of capabilities is 0x"},
	{"another largest write", "mount", withAnswer(37), "its largest write is 0x"},
	{"no answer", "mount", withField("answer", 0, func(json.RawMessage) any { return []byte{1} }), "its record is cut short"},
	{"nodes of a later version", "nodes", ofVersion(+1), "a record has version 2, not 1"},
	{"nodes changed", "nodes", changeMiddle, "damaged"},
	{"open files of a later version", "mounthandles", ofVersion(+1), "a record has version 2, not 1"},
	{"open files changed", "mounthandles", changeMiddle, "damaged"},
	{"files of rings of a later version", "files", ofVersion(+1), "a record has version 2, not 1"},
	{"daemons counted by a later version", "generation", ofVersion(+1), "version 2"},
	{"daemons counted, cut short", "generation", cutShort, "damaged"},
	{"settings of a later version", "settings", ofVersion(+1), "version 2, where this version knows 1"},
	{"semaphores of a later version", "run", ofVersion(+1), "version 2"},
	{"registrations of a later version", "registrations", ofVersion(+1), "version 2 of a registration, where this kv3fs knows 1"},
	{"registration cut short", "registrations", cutShort, "damaged"},
	{"a ring's journal of a later version", "rings", changeFirst, "the journal of a ring, "},
}

// changeState changes a file of the state in a directory.
func changeState(t *testing.T, dir, file string, change stateChange) {
	t.Helper()
	path := filepath.Join(dir, file)
	if entries, err := os.ReadDir(path); err == nil {
		if len(entries) == 0 {
			t.Fatalf("nothing in %s", path)
		}
		path = filepath.Join(path, entries[0].Name())
	}
	whole, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(t, whole), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// stateOf returns the files in a directory, and what is in them.
func stateOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// copyState copies the regular files of a directory to a new one.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range stateOf(t, from) {
		path = filepath.Join(to, strings.TrimPrefix(path, from))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// use has this process open a file of a mount, and a ring, until the test ends.
func use(t *testing.T, mount string) *os.File {
	t.Helper()
	ctx := context.Background()
	m, err := usrbio.Open(ctx, mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(ctx) }) // its mount may have ended
	f, err := os.Create(filepath.Join(mount, "used"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := m.NewIov(ctx, 4096, usrbio.IovOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 4, Write: true}); err != nil {
		t.Fatal(err)
	}
	return f
}

// --check-state refuses what another version has left, says in what it differs, and changes nothing.
func TestCheckStateRefusesSkew(t *testing.T) {
	u := startUpgradable(t, "serve")
	use(t, u.mount)
	check := func(dir string) (said string, status int) {
		t.Helper()
		cmd := exec.Command(binary(t), "serve", "--config", u.config, "--restart-state", dir, "--check-state")
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if said, status := check(u.state); status != 0 || !strings.Contains(said, "would take over the state in ") {
		t.Fatalf("its own: %d: %s", status, said)
	}
	for _, skew := range skews {
		dir := filepath.Join(filepath.Dir(u.state), "copy")
		copyState(t, u.state, dir)
		changeState(t, dir, skew.file, skew.change)
		before := stateOf(t, dir)
		if said, status := check(dir); status != exitFailed || !strings.Contains(said, skew.says) {
			t.Errorf("%s: %d: %q, want one that says %q", skew.name, status, said, skew.says)
		}
		if !maps.Equal(stateOf(t, dir), before) {
			t.Errorf("%s: the state was changed", skew.name)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if out, status := u.upgrade(t); status != 0 {
		t.Errorf("after all that an upgrade fails: %d: %s", status, out)
	}
}

// A daemon that was killed and has left what its successor would not go on with: the clients of its mount are cut off, nobody hangs, the
// log says why, and there is a new mount.
func TestCrashWithSkewBeginsAnew(t *testing.T) {
	u := startUpgradable(t, "hold", "--", "serve")
	n := 1
	for _, skew := range skews {
		if !slices.Contains([]string{"a later format", "another boot", "another largest write", "nodes of a later version", "open files of a later version", "daemons counted by a later version"}, skew.name) {
			continue
		}
		f := use(t, u.mount)
		pid := u.pidOf(t)
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		changeState(t, u.state, skew.file, skew.change)
		said := len(u.said())
		killAndAwait(t, pid)
		n++
		u.awaitSaid(t, "msg=serving ", n)
		if log := u.said()[said:]; !strings.Contains(log, skew.says) {
			t.Errorf("%s: no line says %q:\n%s", skew.name, skew.says, log)
		}
		asked := make(chan error, 1)
		go func() {
			_, err := f.Stat()
			asked <- err
		}()
		select {
		case err := <-asked:
			if !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("%s: a file of the mount before: %v", skew.name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: a call on the mount before hangs", skew.name)
		}
		if err := os.WriteFile(filepath.Join(u.mount, "f"), []byte(skew.name), 0o644); err != nil {
			t.Fatalf("%s: the new mount: %v", skew.name, err)
		}
		if b, err := os.ReadFile(filepath.Join(u.data, "f")); err != nil || !bytes.Equal(b, []byte(skew.name)) {
			t.Errorf("%s: %q, %v", skew.name, b, err)
		}
		if at := daemontest.MountsBelow(u.mount); len(at) != 1 {
			t.Errorf("%s: mounts %v", skew.name, at)
		}
	}
	u.stop(t)
	if left := daemontest.MountsBelow(u.mount); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}
