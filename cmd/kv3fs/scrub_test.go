package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// scrub reads all files or some, lists what is damaged, and says how much it could compare.
func TestScrub(t *testing.T) {
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	// In memory, where a byte can be changed without a trace.
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("kv3fs-test", data, "tmpfs", 0, "size=16m,mode=777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(data, 0); err != nil {
			t.Error(err)
		}
	})
	bin := binary(t)
	o := &operated{t, daemontest.ServeWith(t, daemontest.Options{Binary: bin, Data: data, Flags: []string{"--drain", "1s", "--pages-listen", "off", "--checksums", "on", "--passthrough", "off"}}), bin}
	const entry = "models/vllm-SEP-model@2@1@3fa9c1@half.data"
	content := bytes.Repeat([]byte("scrubbed"), 40_000)
	if err := os.Mkdir(filepath.Join(o.Mount, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{entry, "other\nname"} {
		if err := os.WriteFile(filepath.Join(o.Mount, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(o.Data, "foreign"), content[:1000], 0o644); err != nil {
		t.Fatal(err)
	}
	scrub := func(args ...string) (r scrubReport, status int) {
		t.Helper()
		out, errs, status := o.try(o.Mount, append([]string{"scrub", "--json", "--rate", "1TiB"}, args...)...)
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%s%s: %v", out, errs, err)
		}
		return r, status
	}
	size := int64(len(content))
	if r, status := scrub(); status != 0 || r.Files != 3 || r.ReadBytes != 2*size+1000 || r.TotalBytes != r.ReadBytes || r.VerifiedBytes != 2*size || len(r.Damage) != 0 {
		t.Errorf("nothing is damaged: status %d, %+v", status, r)
	}
	if out := o.run("scrub"); !strings.Contains(out, "3 files, 626 KiB read, 625 KiB of it with checksums: 0 damaged") {
		t.Errorf("%s", out)
	}
	damage(t, filepath.Join(o.Data, entry), 200_000)
	if r, status := scrub("other\nname"); status != 0 || r.Files != 1 || r.VerifiedBytes != size {
		t.Errorf("one file: status %d, %+v", status, r)
	}
	r, status := scrub("models")
	if status != exitFailed || len(r.Damage) != 1 || r.Damage[0].Path != entry || r.Damage[0].Offset != 131072 || r.Damage[0].Bytes != 131072 || r.Damaged+r.Doubtful != 1 {
		t.Errorf("a damaged file: status %d, %+v", status, r)
	}
	if out, errs, status := o.try(o.Mount, "scrub", "absent"); status != exitFailed || !strings.Contains(errs, "absent") {
		t.Errorf("a path that is not there: %d, %s%s", status, out, errs)
	}
}

// damage changes a byte of a file on tmpfs. A page that was read through a mapping is changed through it without moving any time.
func damage(t *testing.T, path string, off int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, off+1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mem[off] ^= 1
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// A daemon without checksums says so.
func TestScrubWithoutChecksums(t *testing.T) {
	o := operate(t, "--checksums", "off")
	if out, errs, status := o.try(o.Mount, "scrub"); status != exitFailed || !strings.Contains(errs, "--checksums on") {
		t.Errorf("%d, %s%s", status, out, errs)
	}
}

// A scrub keeps to the data directory's file system, and is no use of a file.
func TestScrubLeavesOthers(t *testing.T) {
	skipWithoutFUSE(t)
	daemontest.NeedRoot(t)
	data := filepath.Join(t.TempDir(), "data")
	sub := filepath.Join(data, "models", "sub")
	for _, at := range []string{data, sub} {
		if err := os.MkdirAll(at, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("kv3fs-test", at, "tmpfs", unix.MS_STRICTATIME, "size=16m,mode=777"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 200 { // the numbers of inodes are those of the other one's
		if err := os.WriteFile(filepath.Join(sub, strconv.Itoa(i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := binary(t)
	o := &operated{t, daemontest.ServeWith(t, daemontest.Options{Binary: bin, Data: data, Flags: []string{"--drain", "1s", "--pages-listen", "off", "--checksums", "on", "--passthrough", "off"}}), bin}
	content := bytes.Repeat([]byte("scrubbed"), 40_000)
	if err := os.WriteFile(filepath.Join(o.Mount, "f"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(data, "f")
	used := func() int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Atim.Sec
	}
	const long = 1e9 // ago
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: long}, {Nsec: unix.UTIME_OMIT}}, 0); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := o.try(o.Mount, "scrub", "models/sub"); status != exitFailed || !strings.Contains(errs, "another file system") {
		t.Errorf("what is mounted below: status %d, %s%s", status, out, errs)
	}
	for _, at := range []string{".", "f"} {
		var r scrubReport
		if err := json.Unmarshal([]byte(o.run("scrub", "--json", at)), &r); err != nil {
			t.Fatal(err)
		}
		if size := int64(len(content)); r.Files != 1 || r.TotalBytes != size || r.VerifiedBytes != size {
			t.Errorf("%s: %+v", at, r)
		}
	}
	if at := used(); at != long {
		t.Errorf("a scrub was a use: at %d", at)
	}
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if used() == long {
		t.Error("reading is no use there, so this test cannot tell")
	}
}
