package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// operated is a daemon that a test operates with commands.
type operated struct {
	t *testing.T
	*daemontest.Daemon
	bin string
}

func operate(t *testing.T, flags ...string) *operated {
	t.Helper()
	skipWithoutFUSE(t)
	bin := binary(t)
	return &operated{t, daemontest.ServeWith(t, daemontest.Options{Binary: bin, Flags: append([]string{"--drain", "1s", "--pages-listen", "off"}, flags...)}), bin}
}

// try runs a command in a directory.
func (o *operated) try(dir string, args ...string) (out, errs string, status int) {
	o.t.Helper()
	cmd := exec.Command(o.bin, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// run runs a command for the daemon, which must succeed.
func (o *operated) run(args ...string) string {
	o.t.Helper()
	out, errs, status := o.try(o.Mount, args...)
	if status != 0 || errs != "" {
		o.t.Fatalf("kv3fs %s: status %d\n%s%s", strings.Join(args, " "), status, out, errs)
	}
	return out
}

// report runs a command with --json.
func (o *operated) report(into any, command string, args ...string) {
	o.t.Helper()
	out := o.run(append(append(strings.Fields(command), "--json"), args...)...)
	checkJSON(o.t, command, out)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		o.t.Fatal(err)
	}
}

// write makes a file below the mount.
func (o *operated) write(name string, size int) string {
	o.t.Helper()
	at := filepath.Join(o.Mount, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, make([]byte, size), 0o644)); err != nil {
		o.t.Fatal(err)
	}
	return at
}

func spaceOf(t *testing.T, dir string) (sizeBytes, freeBytes int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// A quota is set by the path of a directory below the mount or the data directory, shows in its
// statfs, holds for writes, and is there after a restart and after a kill.
func TestQuotas(t *testing.T) {
	const mib = 1 << 20
	o := operate(t, "--capacity", "64MiB")
	o.write("a/sub/file", mib)
	o.write("b/file", mib)
	if out := o.run("quota", "ls"); !strings.Contains(out, "no quotas") {
		t.Error(out)
	}
	if out := o.run("quota", "set", filepath.Join(o.Mount, "a"), "8MiB"); !strings.Contains(out, "a may take 8.0 MiB; it takes ") {
		t.Error(out)
	}
	o.run("quota", "set", filepath.Join(o.Data, "a", "sub"), "4MiB")
	o.run("quota", "set", "b", "2MiB") // in the current directory
	if out := o.run("quota", "set", "--data", o.Data, "b", "3MiB"); !strings.Contains(out, "b may take 3.0 MiB") {
		t.Error(out)
	}
	look := func() {
		t.Helper()
		for dir, want := range map[string]int64{".": 64 * mib, "a": 8 * mib, "a/sub": 4 * mib, "b": 3 * mib} {
			if size, free := spaceOf(t, filepath.Join(o.Mount, dir)); size != want || free >= size {
				t.Errorf("statfs of %s: %d bytes free of %d; want %d", dir, free, size, want)
			}
		}
		var all quotasReport
		o.report(&all, "quota ls", "--mount", o.Mount)
		if len(all.Quotas) != 3 || all.Quotas[1].Path != "a/sub" || all.Quotas[1].Bytes != 4*mib || all.Quotas[1].UsedBytes < mib || all.Quotas[1].Files != 1 || all.Quotas[1].Missing {
			t.Errorf("%+v", all)
		}
	}
	look()
	if err := os.WriteFile(filepath.Join(o.Mount, "b", "more"), make([]byte, 3*mib), 0o644); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("a write beyond the quota: %v", err)
	}
	if err := os.Remove(filepath.Join(o.Mount, "b", "more")); err != nil {
		t.Error(err)
	}
	if err := o.Stop(); err != nil {
		t.Error(err)
	}
	o.Start(t)
	look()
	o.Kill()
	o.Start(t)
	look()
	var removed quotasReport
	o.report(&removed, "quota rm", filepath.Join(o.Mount, "b"))
	if len(removed.Quotas) != 1 || removed.Quotas[0].Path != "b" {
		t.Errorf("%+v", removed)
	}
	if size, _ := spaceOf(t, filepath.Join(o.Mount, "b")); size != 64*mib {
		t.Errorf("without its quota, b has %d bytes", size)
	}
	for _, c := range []struct{ args, says string }{
		{"quota set nothing 8MiB", "no such file"},
		{"quota set b 8KiB", "at least 1 MiB"},
		{"quota set b 50%", "a quota is a size"},
		{"quota set . 8MiB", "below the data directory"},
		{"quota rm b", "no such file"},
		{"quota ls --data /nothing", "is no data directory"},
		{"quota ls --mount /", "neither below a mount"},
		{"quota set / 8MiB", "neither below a mount"},
		{"du nothing", "no such file"},
		{"du a/sub/file", "not a directory"},
	} {
		if out, errs, status := o.try(o.Mount, strings.Fields(c.args)...); status == 0 || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("kv3fs %s: %d, %s%s; want %q", c.args, status, out, errs, c.says)
		}
	}
}

// du says what directories, owners and models take, whatever their names are.
func TestDU(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	const strange = "new\nline\xff"
	o.write("models/meta-llama-SEP-Llama-3-8B@1@0@1f@half.data", 100_000)
	o.write("models/Qwen-SEP-QwQ-32B@1@0@1f@half.data", 200_000)
	o.write(strange+"/x", 5000)
	var r duReport
	o.report(&r, "du", o.Mount)
	if r.Files != 3 || r.Bytes < 305_000 || len(r.Directories) != 3 || r.Directories[1].Path != "models" || r.Directories[1].Files != 2 {
		t.Errorf("%+v", r)
	}
	if out := o.run("du"); !strings.Contains(out, `"new\nline\xff"`) || !strings.Contains(out, "64 MiB  .") {
		t.Error(out)
	}
	o.report(&r, "du", "--by", "owner", filepath.Join(o.Data, "models"))
	if len(r.Groups) != 1 || r.Groups[0].Owner != "lmcache" || r.Groups[0].Files != 2 {
		t.Errorf("%+v", r)
	}
	if out := o.run("du", "--by", "model"); !strings.Contains(out, "Qwen/QwQ-32B") || !strings.Contains(out, "(the names do not tell)") || strings.Index(out, "QwQ") > strings.Index(out, "Llama") {
		t.Error(out)
	}
	o.report(&r, "du", filepath.Join(o.Mount, strange))
	if r.Files != 1 {
		t.Errorf("%+v", r)
	}
}

// A daemon without a capacity says what is missing. One that has rules from before keeps them
// without it.
func TestNotKept(t *testing.T) {
	o := operate(t)
	if err := os.Mkdir(filepath.Join(o.Mount, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"du"}, {"quota", "set", "a", "8MiB"}, {"quota", "ls"}} {
		if _, errs, status := o.try(o.Mount, args...); status != exitFailed || !strings.Contains(errs, "--capacity 100%") {
			t.Errorf("%v: %d %s", args, status, errs)
		}
	}
	if err := o.Stop(); err != nil {
		t.Error(err)
	}
	if _, errs, status := o.try("/", "du", o.Data); status != exitFailed || !strings.Contains(errs, "no daemon of this host serves") {
		t.Errorf("without a daemon: %d %s", status, errs)
	}
	with := daemontest.ServeWith(t, daemontest.Options{Binary: o.bin, Data: o.Data, Flags: []string{"--capacity", "100%", "--drain", "1s", "--pages-listen", "off"}})
	if _, errs, status := o.try(with.Mount, "quota", "set", "a", "8MiB"); status != 0 {
		t.Error(errs)
	}
	if err := with.Stop(); err != nil {
		t.Error(err)
	}
	o.Start(t)
	if size, _ := spaceOf(t, filepath.Join(o.Mount, "a")); size != 8<<20 {
		t.Errorf("without --capacity, the quota is %d bytes", size)
	}
	if out := o.run("quota", "ls"); !strings.Contains(out, "8.0 MiB") {
		t.Error(out)
	}
}

// block is the name of a block of LMCache's.
func block(n int) string {
	return fmt.Sprintf("models/meta-llama-SEP-Llama-3-8B@1@0@%x@half.data", n)
}

// aged makes a file below the mount as old as the keeper wants those to be that may go.
func (o *operated) aged(name string, size int) {
	o.t.Helper()
	at := o.write(name, size)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(at, old, old); err != nil {
		o.t.Fatal(err)
	}
}

// ls chooses files by what is known of them, and stat tells it, whatever the names are.
func TestListAndStat(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	const strange = "odd/[new]\nline\xff*"
	o.aged(block(1), 100_000)
	o.aged(block(2), 200_000)
	o.aged(strange, 5000)
	o.write("models/Qwen-SEP-QwQ-32B@1@0@1f@half.tmp", 10)
	list := func(args ...string) (paths []string) {
		t.Helper()
		var r struct {
			Files   []keeper.Listed
			NotUTF8 map[string][]byte `json:"not_utf8"`
		}
		o.report(&r, "ls", args...)
		for i, f := range r.Files {
			if exact, ok := r.NotUTF8[fmt.Sprintf("/files/%d/path", i)]; ok {
				f.Path = string(exact)
			}
			paths = append(paths, f.Path)
		}
		slices.Sort(paths)
		return paths
	}
	const temporary = "models/Qwen-SEP-QwQ-32B@1@0@1f@half.tmp"
	for _, c := range []struct{ args, want []string }{
		{nil, []string{temporary, block(1), block(2), strange}},
		{[]string{"odd"}, []string{strange}},
		{[]string{strange}, []string{strange}},
		{[]string{filepath.Join(o.Data, "odd", "*")}, []string{strange}},
		{[]string{"--owner", "lmcache", "--model", "meta-llama/Llama-3-8B"}, []string{block(1), block(2)}},
		{[]string{"--owner", "unknown"}, []string{strange}},
		{[]string{"--sort", "bytes", "--limit", "2"}, []string{block(1), block(2)}},
		{[]string{"--older-than", "7d"}, nil},
		{[]string{"--newer-than", "2h", "--max-uses", "0", "*/*[0-9]@half.data"}, []string{block(1), block(2)}},
		{[]string{"--broken"}, []string{temporary}},
	} {
		if got := list(c.args...); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q; want %q", c.args, got, c.want)
		}
	}
	if out := o.run("ls"); !strings.Contains(out, "lmcache         temporary  models/Qwen") || !strings.Contains(out, `"odd/[new]\nline\xff*"`) || strings.Count(out, "\n") != 5 {
		t.Error(out)
	}
	if out := o.run("ls", "--broken"); !strings.Contains(out, temporary+"  (a temporary file that was not completed; its writer may still be at work)\n") {
		t.Error(out)
	}
	if out := o.run("ls", "--older-than", "1000d"); out != "No files.\n" {
		t.Error(out)
	}
	var about statReport
	o.report(&about, "stat", block(1))
	if f := about.File; f == nil || f.Owner != "lmcache" || f.SizeBytes != 100_000 || f.WorldSize != 1 || len(f.Parts) != 1 || !f.MayGo || about.RoomBytes == nil {
		t.Errorf("%+v", about)
	}
	if out := o.run("stat", strange); !strings.Contains(out, "of no layout") || !strings.Contains(out, `\xff`) {
		t.Error(out)
	}
	if out := o.run("stat", "models"); !strings.Contains(out, "in 3 files") {
		t.Error(out)
	}
	// A use is counted, and a file that is open stays.
	f, err := os.Open(filepath.Join(o.Mount, block(2)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if out := o.run("stat", filepath.Join(o.Mount, block(2))); !strings.Contains(out, "stays") || !strings.Contains(out, "it is open") {
		t.Error(out)
	}
	about = statReport{}
	o.report(&about, "stat")
	if s := about.State; s == nil || s.Files != 4 || s.LimitBytes != 64<<20 || s.HighPercent != 95 || about.File != nil {
		t.Errorf("%+v", about)
	}
	if out := o.run("stat", "--data", o.Data); !strings.Contains(out, "64 MiB") || !strings.Contains(out, "in 4 files") {
		t.Error(out)
	}
	o.report(&about, "stat", "--curve")
	if about.Curve == nil {
		t.Errorf("%+v", about)
	}
	o.run("stat", "--curve")
	for _, c := range []struct{ args, says string }{
		{"ls nothing", "no such file"},
		{"ls --owner nobody", "give one of [unknown lmcache"},
		{"ls --sort uses --limit 10001", "--limit"},
		{"ls --older-than 0s", "no duration from 1s"},
		{"stat nothing", "no such file"},
		{"stat --curve models", "leave out the path"},
		{"stat 3fs-virt", "no such file"},
		{"ls [", "syntax error"},
	} {
		if out, errs, status := o.try(o.Mount, strings.Fields(c.args)...); status == 0 || !strings.Contains(errs, c.says) || out != "" && !strings.Contains(c.args, "--json") {
			t.Errorf("kv3fs %s: %d, %s%s; want %q", c.args, status, out, errs, c.says)
		}
	}
}

// evict removes what may safely go, and says why the rest stays: what is pinned, open, young, unknown
// or the page service's. Pins are there after a kill.
func TestEvictAndPins(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	for n := range 4 {
		o.aged(block(n), 5000)
	}
	o.aged("odd/unknown", 100)
	o.aged("pages/hf3fs_vllm_data_file_0", 4096)
	if out := o.run("pin", block(1)); out != block(1)+"\n" {
		t.Error(out)
	}
	o.Kill()
	o.Start(t)
	if out := o.run("pin"); out != block(1)+"\n" {
		t.Errorf("after a kill: %s", out)
	}
	open, err := os.Open(filepath.Join(o.Mount, block(2)))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	await(t, "the scan", func() bool {
		var r statReport
		o.report(&r, "stat")
		return r.State.Scanned
	})
	o.write(block(9), 5000)
	want := map[string]string{
		block(0): "", block(1): "pinned by", block(2): "open", block(3): "", block(9): "grace period",
		"odd/unknown": "of no layout", "pages/hf3fs_vllm_data_file_0": "kv3fs pages evict",
	}
	for _, dry := range []bool{true, false} {
		var r evictReport
		o.report(&r, "evict", append([]string{"."}, map[bool][]string{true: {"--dry-run"}}[dry]...)...)
		if r.DryRun != dry || r.RemovedFiles != 2 || r.StayingFiles != 5 || len(r.Files) != len(want) {
			t.Errorf("%+v", r)
		}
		for _, f := range r.Files {
			why, ok := want[f.Path]
			if !ok || !strings.Contains(f.Stays, why) || (why == "") != (f.Stays == "") || f.Removed != (f.Stays == "" && !dry) {
				t.Errorf("%+v; want %q", f, why)
			}
			if _, err := os.Lstat(filepath.Join(o.Mount, f.Path)); os.IsNotExist(err) != f.Removed {
				t.Errorf("%+v, and then %v", f, err)
			}
		}
	}
	open.Close()
	if out := o.run("unpin", block(1)); !strings.Contains(out, "no pins") {
		t.Error(out)
	}
	if out := o.run("evict", "models/*[12]@half.data"); !strings.Contains(out, "2 files of ") || !strings.Contains(out, " removed; 0 stay.") {
		t.Error(out)
	}
	if out := o.run("evict", "models/*x"); out != "0 files of 0 B removed; 0 stay.\n" {
		t.Error(out)
	}
	if out := o.run("stat"); !strings.Contains(out, "removed on request   4 files") {
		t.Error(out)
	}
	for _, c := range []struct{ args, says string }{
		{"evict nothing", "no such file"},
		{"evict", "expected"},
		{"evict --max-uses 255", "expected"}, // which chooses nothing
		{"evict --owner lmcache", "--yes"},
		{"evict --dry-run --owner nobody", "give one of [unknown lmcache"},
		{"evict --older-than 7d --newer-than 1d .", "--newer-than"},
		{"evict --min-uses 3 --max-uses 2 .", "--max-uses"},
		{"evict --min-uses 256 .", "--min-uses"},
		{"stat --min-uses 1 --curve", "--curve"},
		{"stat --older-than 7d --newer-than 1d", "--newer-than"},
		{"ls --min-uses -1", "--min-uses"},
		{"unpin", "expected"},
		{"unpin --owner lmcache", "no such file"},
		{"pin --owner nobody", "give one of [unknown lmcache"},
		{"unpin models", "no such file"},
	} {
		if _, errs, status := o.try(o.Mount, strings.Fields(c.args)...); status == 0 || !strings.Contains(errs, c.says) {
			t.Errorf("kv3fs %s: %d, %s; want %q", c.args, status, errs, c.says)
		}
	}
}

// evict and stat choose files as ls does, and remove none that the flags do not choose. A pin by what
// names tell holds for files that come later, and is there after a kill.
func TestChosenFiles(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	const llama, odd = "meta-llama/Llama-3-8B", "odd\n\xff/"
	other := func(n int) string { return strings.Replace(block(n), "Llama-3-8B", "new\nline\xff", 1) }
	for n := range 3 {
		o.aged(block(n), 5000)
		o.aged(other(n), 9000)
	}
	o.aged(odd+"unknown", 100)
	read := func(name string) {
		t.Helper()
		if _, err := os.ReadFile(filepath.Join(o.Mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "a use to count", func() bool { // those within a second of the writing do not
		read(block(0))
		var r statReport
		o.report(&r, "stat", "--min-uses", "1")
		return r.Total.Files == 1
	})
	var r statReport
	o.report(&r, "stat", "--model", llama, "models")
	if s := r.Total; s == nil || s.Files != 3 || s.Bytes < 15000 || s.NeverUsedFiles != 2 || s.Uses < 1 || s.PinnedFiles != 0 {
		t.Errorf("%+v", s)
	}
	if out := o.run("stat", "--older-than", "1000d"); out != "chosen  0 files of 0 B\n" {
		t.Error(out)
	}
	if out := o.run("stat", "--owner", "unknown"); !strings.Contains(out, "chosen     1 files of ") {
		t.Error(out)
	}
	chosen := func(args ...string) (paths []string) {
		t.Helper()
		var r struct {
			Files   []keeper.Removal
			NotUTF8 map[string][]byte `json:"not_utf8"`
		}
		o.report(&r, "evict", append([]string{"--dry-run"}, args...)...)
		for i, f := range r.Files {
			if exact, ok := r.NotUTF8[fmt.Sprintf("/files/%d/path", i)]; ok {
				f.Path = string(exact)
			}
			paths = append(paths, f.Path)
		}
		slices.Sort(paths)
		return paths
	}
	for _, c := range []struct{ args, want []string }{
		{[]string{"--model", llama}, []string{block(0), block(1), block(2)}},
		{[]string{"--model", llama, "--max-uses", "0"}, []string{block(1), block(2)}},
		{[]string{"--owner", "lmcache", "--min-uses", "1"}, []string{block(0)}},
		{[]string{"--owner", "unknown"}, []string{odd + "unknown"}},
		{[]string{"--model", "meta-llama/new\nline\xff", "models", "models/*[12]@half.data"}, []string{other(0), other(1), other(2)}}, // each once
		{[]string{"--older-than", "1000d"}, nil},
		{[]string{"--model", "no such model"}, nil},
		{[]string{"--owner", "lmcache", "odd*"}, nil},
	} {
		if got := chosen(c.args...); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q; want %q", c.args, got, c.want)
		}
	}
	// As a rule of names.
	if out := o.run("pin", "--owner", "lmcache", "--model", "meta-llama/new\nline\xff"); out != `.  --owner lmcache  --model "meta-llama/new\nline\xff"`+"\n" {
		t.Error(out)
	}
	o.run("pin", "--model", llama, block(0))
	o.Kill()
	o.Start(t)
	await(t, "the scan", func() bool {
		var r statReport
		o.report(&r, "stat")
		return r.State.Scanned
	})
	o.aged(other(7), 9000)
	o.aged(block(7), 5000)
	if out := o.run("evict", "--yes", "--owner", "lmcache"); !strings.Contains(out, "3 files of ") || !strings.Contains(out, "removed; 5 stay.") ||
		strings.Count(out, `pinned by "." --owner "lmcache" --model "meta-llama/new\nline\xff"`) != 4 {
		t.Error(out)
	}
	var pins pinsReport
	o.report(&pins, "unpin", "--owner", "lmcache", "--model", "meta-llama/new\nline\xff", ".")
	if len(pins.Pins) != 0 || len(pins.PinsBy) != 1 || pins.PinsBy[0] != (keeper.Pin{Pattern: block(0), Origin: keeper.Origin{Model: llama}}) {
		t.Errorf("%+v", pins)
	}
	if out := o.run("evict", "--max-uses", "0", "models"); !strings.Contains(out, "4 files of ") || !strings.Contains(out, "removed; ") {
		t.Error(out)
	}
}

// A TTL is set, kept and ended, and what nobody has used goes.
func TestTTL(t *testing.T) {
	o := operate(t, "--capacity", "64MiB", "--eviction-grace", "1s")
	o.write("scratch/file", 100)
	if out := o.run("ttl", "set", "scratch", "7d"); !strings.Contains(out, "7.0d  scratch") {
		t.Error(out)
	}
	o.Kill()
	o.Start(t)
	var r ttlsReport
	o.report(&r, "ttl ls")
	if len(r.TTLs) != 1 || r.TTLs[0] != (ttlReport{"scratch", 7 * 24 * 3600}) {
		t.Errorf("%+v", r)
	}
	o.report(&r, "ttl set", "scratch", "12h")
	if len(r.TTLs) != 1 || r.TTLs[0].UnusedSeconds != 12*3600 {
		t.Errorf("%+v", r)
	}
	o.report(&r, "ttl rm", "scratch")
	if len(r.TTLs) != 0 {
		t.Errorf("%+v", r)
	}
	if out := o.run("ttl", "ls"); !strings.Contains(out, "no TTLs") {
		t.Error(out)
	}
	if _, errs, status := o.try(o.Mount, "ttl", "rm", "scratch"); status == 0 || !strings.Contains(errs, "no such file") {
		t.Errorf("%d %s", status, errs)
	}
}

// A daemon that is killed in the middle of "quota set" has the old quota or the new one, and what
// has answered is kept.
func TestKilledWhileQuotaIsSet(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	if err := os.Mkdir(filepath.Join(o.Mount, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed.New(t), 1))
	var answered, tried int64
	for range 5 {
		dirs, err := socketDirs(o.Data)
		if err != nil {
			t.Fatal(err)
		}
		client, err := admin.Dial(t.Context(), dirs, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		sets := make(chan int64, 1<<16)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for size := answered + 1<<20; ; size += 4096 {
				tried = size
				if client.SetQuota(t.Context(), "a", size) != nil {
					return
				}
				answered = size
				sets <- size
			}
		}()
		for range 1 + rnd.IntN(20) {
			select {
			case <-sets:
			case <-ended:
				t.Fatalf("the quota cannot be set to %d", tried)
			}
		}
		o.Kill()
		<-ended
		client.Close()
		o.Start(t)
		var r quotasReport
		o.report(&r, "quota ls")
		if len(r.Quotas) != 1 || r.Quotas[0].Path != "a" || r.Quotas[0].Bytes != answered && r.Quotas[0].Bytes != tried {
			t.Fatalf("%+v; want %d or %d", r, answered, tried)
		}
		answered = r.Quotas[0].Bytes
		if left, err := filepath.Glob(filepath.Join(o.Data, ".kv3fs", "keeper", "*.tmp")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

// A quota and a capacity below what is pinned are taken: all that may go goes, writes then fail until
// there is room, and the log says so.
func TestLimitsBelowWhatIsPinned(t *testing.T) {
	const mib = 1 << 20
	o := operate(t, "--capacity", "64MiB")
	for n := range 8 {
		o.aged(block(n), mib)
	}
	o.run("pin", "models/*[0-3]@half.data")
	out := o.run("quota", "set", "models", "2MiB")
	if !strings.Contains(out, "Files go now until the quota is kept to") || !strings.Contains(out, "EDQUOT") {
		t.Error(out)
	}
	left := func() (n int) {
		for i := range 8 {
			if _, err := os.Lstat(filepath.Join(o.Data, block(i))); err == nil {
				n++
			}
		}
		return n
	}
	await(t, "all that may go to go", func() bool { return left() == 4 })
	fails := func(name string, want error) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.Mount, name), make([]byte, 64<<10), 0o644); !errors.Is(err, want) {
			t.Errorf("a write to %s: %v; want %v", name, err, want)
		}
	}
	fails("models/new", unix.EDQUOT)
	await(t, "the log", func() bool { return strings.Contains(o.Log(), "more is used than the limit, and nothing more may go") })
	if left() != 4 {
		t.Errorf("%d files are left; want those that are pinned", left())
	}
	if size, free := spaceOf(t, filepath.Join(o.Mount, "models")); size != 2*mib || free != 0 {
		t.Errorf("%d bytes, %d of them free", size, free)
	}
	var all quotasReport
	if o.report(&all, "quota ls"); len(all.Quotas) != 1 || all.Quotas[0].UsedBytes < 4*mib || all.Quotas[0].Files != 4 {
		t.Errorf("%+v", all)
	}
	o.run("quota", "rm", "models")
	if err := o.Stop(); err != nil {
		t.Error(err)
	}
	small := daemontest.ServeWith(t, daemontest.Options{Binary: o.bin, Data: o.Data, Flags: []string{"--capacity", "3MiB", "--drain", "1s", "--pages-listen", "off"}})
	o.Mount = small.Mount
	fails("other", unix.ENOSPC)
	if left() != 4 {
		t.Errorf("%d files are left; want those that are pinned", left())
	}
	o.run("unpin", "models/*[0-3]@half.data")
	await(t, "room", func() bool { return os.WriteFile(filepath.Join(o.Mount, "other"), make([]byte, 64<<10), 0o644) == nil })
	if n := left(); n < 1 || n > 3 {
		t.Errorf("%d files are left", n)
	}
	o.Mount = o.Daemon.Mount
}

// Another user is told who may operate the daemon.
func TestOperateAsAnotherUser(t *testing.T) {
	daemontest.NeedRoot(t)
	o := operate(t, "--capacity", "64MiB")
	cmd := exec.Command(o.bin, "stat", "--data", o.Data)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "as root or as the daemon's user") {
		t.Errorf("%v: %s", err, out)
	}
}

// A command that a signal interrupts while it waits for the daemon says so, in JSON, too.
func TestInterruptedOperators(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, ".kv3fs", "hosts", "me")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, admin.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan struct{}, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 1)); err == nil { // a request, to which there is no answer
					asked <- struct{}{}
				}
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	for _, command := range []string{"stat", "stat x", "du", "ls", "evict x", "pin x", "unpin x", "ttl set x 7d", "ttl ls", "ttl rm x", "quota set x 1GiB", "quota ls", "quota rm x"} {
		cmd := exec.Command(binary(t), append(strings.Fields(command), "--json", "--data", data)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Errorf("%s: it does not ask", command)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // its status is looked at
		if status := cmd.ProcessState.ExitCode(); status != exitInterrupted {
			t.Errorf("%s: status %d: %s", command, status, errs.String())
		}
		name := strings.Fields(command)[0]
		if name == "quota" || name == "ttl" {
			name += " " + strings.Fields(command)[1]
		}
		checkJSON(t, name, out.String())
		var head envelope
		if err := json.Unmarshal(out.Bytes(), &head); err != nil || !head.Interrupted {
			t.Errorf("%s: %v, %s", command, err, out.String())
		}
	}
}

// The commands work for kv3fs keep, too, with the keeper that has the lease.
func TestOperateKeep(t *testing.T) {
	dir := t.TempDir()
	for n := range 3 {
		putBlock(t, dir, n, 4096, time.Hour)
	}
	// A daemon that keeps nothing may serve the directory.
	if err := os.MkdirAll(filepath.Join(dir, ".kv3fs", "hosts", "none"), 0o700); err != nil {
		t.Fatal(err)
	}
	k := startKeeper(t, dir, "--capacity", "64MiB", "--lease", "3s", "--grace", "1s", "--identity", "me")
	o := &operated{t: t, Daemon: &daemontest.Daemon{Data: dir, Mount: dir}, bin: binary(t)}
	var r statReport
	await(t, "the keeper", func() bool {
		out, _, status := o.try(dir, "stat", "--json")
		return status == 0 && json.Unmarshal([]byte(out), &r) == nil && r.State.Scanned
	})
	if r.State.Dir != dir || r.State.Files != 3 {
		t.Errorf("%+v", r.State)
	}
	o.run("quota", "set", filepath.Dir(filepath.Join(dir, blockPath(1))), "2MiB")
	o.run("pin", blockPath(2))
	if out := o.run("evict", dir); !strings.Contains(out, "2 files of ") || !strings.Contains(out, " removed; 1 stay.") {
		t.Error(out)
	}
	if out := o.run("ls"); !strings.Contains(out, blockPath(2)) || strings.Count(out, "\n") != 2 {
		t.Error(out)
	}
	k.signal(syscall.SIGTERM)
	<-k.ended
	if _, errs, status := o.try(dir, "stat"); status != exitFailed || !strings.Contains(errs, "no daemon of this host serves") {
		t.Errorf("after the end: %d %s", status, errs)
	}
}

// A data directory whose name is not UTF-8 is found, and named exactly.
func TestOperateNotUTF8(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	d := daemontest.ServeWith(t, daemontest.Options{Binary: bin, Data: filepath.Join(t.TempDir(), "data\xff"), Flags: []string{"--capacity", "64MiB", "--drain", "1s"}})
	o := &operated{t, d, bin}
	for _, args := range [][]string{{"--data", d.Data}, {"--mount", d.Mount}, nil} {
		out := o.run(append([]string{"stat", "--json"}, args...)...)
		checkJSON(t, "stat", out)
		var r envelope
		if err := json.Unmarshal([]byte(out), &r); err != nil || string(r.NotUTF8["/state/data"]) != d.Data {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	if out := o.run("du", d.Data); !strings.Contains(out, "64 MiB  .") {
		t.Error(out)
	}
}

// A daemon that does not answer is an error within the time that was given.
func TestOperateFrozen(t *testing.T) {
	o := operate(t, "--capacity", "64MiB")
	o.Freeze(t)
	defer o.Thaw(t)
	if _, errs, status := o.try("/", "stat", "--data", o.Data, "--timeout", "1s"); status != exitFailed || !strings.Contains(errs, "has not answered for 1s") {
		t.Errorf("%d: %s", status, errs)
	}
}

// A daemon is found by a symbolic link that leads to its mount, and by a part of the mount that is
// bound elsewhere.
func TestOperateFindsDaemon(t *testing.T) {
	daemontest.NeedRoot(t)
	o := operate(t, "--capacity", "64MiB")
	o.write("sub/x/f", 100)
	dir := daemontest.NewDir(t)
	link, bound := filepath.Join(dir, "link"), filepath.Join(dir, "bound")
	if err := errors.Join(os.Symlink(filepath.Join(o.Mount, "sub"), link), os.Mkdir(bound, 0o755), unix.Mount(filepath.Join(o.Mount, "sub"), bound, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(bound, 0); err != nil {
			t.Error(err)
		}
	}()
	for _, args := range [][]string{{link + "/x/f"}, {link}, {bound}, {bound + "/x/*"}, {"--mount", bound, "x"}, {"--mount", bound}, {"--mount", o.Mount, "sub"}, {"--data", o.Data, "sub/x/f"}} {
		if out, errs, status := o.try("/", append([]string{"ls"}, args...)...); status != 0 || !strings.Contains(out, "  sub/x/f\n") {
			t.Errorf("%q: %d\n%s%s", args, status, out, errs)
		}
	}
}
