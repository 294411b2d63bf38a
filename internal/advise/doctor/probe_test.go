package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// output waits a bounded time, whatever the program does.
func TestOutput(t *testing.T) {
	if text, err := output(t.Context(), time.Minute, "echo", "x"); err != nil || string(text) != "x\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := output(t.Context(), time.Minute, "sh", "-c", "echo first >&2; echo last words >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("a failure: %v", err)
	}
	if _, err := output(t.Context(), time.Minute, "kv3fs-no-such-program"); err == nil {
		t.Error("a missing program ran")
	}
	began := time.Now()
	// The grandchild keeps the pipe open after sh has ended.
	if _, err := output(t.Context(), 100*time.Millisecond, "sh", "-c", "sleep 300 & sleep 300"); !errors.Is(err, errNoAnswer) {
		t.Errorf("hung: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := output(ctx, time.Hour, "sleep", "300"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("bounded waits took %v", took)
	}
}

func TestProbeRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"mount"}, {"mount", "a", "b"}, {"nonsense"}, {"processes", "x"}} {
		if err := Probe(args, new(strings.Builder)); err == nil {
			t.Errorf("%q was answered", args)
		}
	}
	if _, err := runProbe[mountFacts](t.Context(), local(), time.Minute, "nonsense"); err == nil {
		t.Error("nonsense was answered")
	}
}

// Measuring the disk takes about two seconds and leaves nothing behind.
func TestDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes two seconds")
	}
	for _, data := range []string{t.TempDir(), filepath.Dir(stateIn(t, t.TempDir()))} {
		began := time.Now()
		f := checkDisk(t.Context(), local(), data)
		if took := time.Since(began); took > diskTimeout || f.Status > Note || !strings.Contains(f.Found, "writes") {
			t.Errorf("%v, %+v", took, f)
		}
		filepath.WalkDir(data, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				t.Errorf("left behind: %s, %v", path, err)
			}
			return nil
		})
	}
	want(t, "missing", judgeDisk(probeDisk(t.TempDir()+"/none")), "data.bandwidth", Failure)
}

// What reserved files hold already is counted, and nothing else in their directory. No
// directory yet is no error.
func TestHeld(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"dfs_shard_00.data": 1 << 20, "dfs_shard_01.data": 1 << 20, "other.data": 4 << 20} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "dfs_shard_01.data"), 1<<30); err != nil { // sparse from here on
		t.Fatal(err)
	}
	held, err := runProbe[int64](t.Context(), local(), time.Minute, "held", dir, "dfs_shard_*.data")
	if err != nil || held < 2<<20 || held >= 6<<20 {
		t.Errorf("%d bytes, %v", held, err)
	}
	if held, err := runProbe[int64](t.Context(), local(), time.Minute, "held", dir+"/none", "*"); err != nil || held != 0 {
		t.Errorf("no directory: %d bytes, %v", held, err)
	}
}

func stateIn(t *testing.T, data string) string {
	t.Helper()
	dir := filepath.Join(data, tree.StateName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDataProbe(t *testing.T) {
	o := local()
	o.NoBandwidth = true
	dir := t.TempDir()
	all := checkData(t.Context(), o, &engine{}, dir)
	if len(all) < 3 || byID(t, all, "data").Status > Warning || byID(t, all, "data.space").Status > Warning {
		t.Errorf("%+v", all)
	}
	want(t, "missing", checkData(t.Context(), o, &engine{}, dir+"/none")[0], "data", Failure)
	if err := writeFile(dir+"/file", ""); err != nil {
		t.Fatal(err)
	}
	want(t, "a file", checkData(t.Context(), o, &engine{}, dir+"/file")[0], "data", Failure)
	want(t, "not known", checkData(t.Context(), o, &engine{}, "")[0], "data", Note)
	o.Probe = []string{"false"}
	want(t, "no probe", checkData(t.Context(), o, &engine{}, dir)[0], "data", Note)
}

// An engine's configuration is checked by itself and against the disk.
func TestEngineConfig(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := local()
	o.Engine, o.ConfigFile = engineconfig.LMCacheGDS, filepath.Join(dir, "lmcache.yaml")
	if err := writeFile(o.ConfigFile, "chunk_size: 256\ngds_path: "+dir+"/kv\ngds_buffer_size: 8192\n"); err != nil {
		t.Fatal(err)
	}
	e := checkEngine(t.Context(), o)
	if e.config == nil || len(e.paths()) != 1 {
		t.Fatalf("%+v", e.findings)
	}
	all := checkConfig(t.Context(), o, e.config, "")
	if f := byID(t, all, "config.path"); f.Status != OK && !strings.Contains(f.Found, "does not exist") {
		t.Errorf("%+v", f)
	}
	e.config.Mount = "/mnt/3fs/"
	want(t, "another spelling", checkConfig(t.Context(), o, e.config, "/mnt/3fs")[0], "config.mount", Failure)

	o.ConfigFile = dir + "/none"
	e = checkEngine(t.Context(), o)
	want(t, "no file", byID(t, e.findings, "config"), "config", Failure)
	if err := writeFile(o.ConfigFile, "- \x00 no yaml: ["); err != nil {
		t.Fatal(err)
	}
	e = checkEngine(t.Context(), o)
	want(t, "nonsense", byID(t, e.findings, "config"), "config", Failure)
	if e.need.Packages == nil {
		t.Error("with an unreadable configuration, the engine's default needs are missing")
	}

	// Something that is not a configuration file is not opened, and the finding says what it is.
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(dir+"/large", strings.Repeat("# nothing\n", 1<<17)); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"fifo": "not a regular file", "": "is a directory", "nowhere": "there is no", "large": "more than 64 KiB", "lmcache.yaml/x": "not a directory"} {
		o.ConfigFile = filepath.Join(dir, name)
		f := byID(t, checkEngine(t.Context(), o).findings, "config")
		if want(t, name, f, "config", Failure); !strings.Contains(f.Found, says) {
			t.Errorf("%q: %+v", name, f)
		}
	}
	f := judgeFile("/x", fileFacts{Err: probeError{syscall.EACCES, "no"}}, nil)
	if want(t, "not readable", f, "config", Failure); !strings.Contains(f.Fix, "chmod") {
		t.Errorf("not readable: %+v", f)
	}
}

func TestPathProbe(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	facts := probePaths([]string{dir, dir + "/a/b"})
	if f := facts[0]; f.Parent != dir || f.Canonical != dir || f.Write.failed() {
		t.Errorf("%+v", f)
	}
	if f := facts[1]; f.Parent != dir || f.Canonical != dir || f.Write.failed() {
		t.Errorf("%+v", f)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The doctor knows the needs of every engine.
func TestEveryEngine(t *testing.T) {
	for _, name := range engineconfig.Names() {
		o := local()
		o.Engine = name
		o.Params.TP = 2
		e := checkEngine(t.Context(), o)
		if e.title != name+" with 2 ranks" || len(e.findings) > 1 {
			t.Errorf("%s: %+v", name, e)
		}
	}
	o := local()
	o.Engine, o.Params.TP = engineconfig.VLLM, 1<<30
	if e := checkEngine(t.Context(), o); len(e.findings) == 0 || e.findings[0].Status != Failure {
		t.Errorf("a billion ranks: %+v", e)
	}
}
