package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// keeperProcess is a running "kv3fs keep".
type keeperProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines []keeperLine
	text  bytes.Buffer
}

// keeperLine is a line of its log.
type keeperLine struct {
	Time  time.Time
	Msg   string
	Token uint64
	Name  string
}

// startKeeper runs a keeper until the test ends.
func startKeeper(t *testing.T, flags ...string) *keeperProcess {
	t.Helper()
	k := &keeperProcess{t: t, ended: make(chan struct{})}
	k.cmd = exec.Command(binary(t), append([]string{"keep", "--log-format", "json", "--log-level", "DEBUG"}, flags...)...)
	out, err := k.cmd.StderrPipe()
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(k.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l keeperLine
			k.mu.Lock()
			if json.Unmarshal(lines.Bytes(), &l) == nil {
				k.lines = append(k.lines, l)
			}
			k.text.Write(append(lines.Bytes(), '\n'))
			k.mu.Unlock()
		}
		_ = k.cmd.Wait() // its status is looked at
	}()
	t.Cleanup(func() {
		_ = k.cmd.Process.Kill()
		<-k.ended
		if t.Failed() {
			t.Logf("keeper %v:\n%s", flags, k.log())
		}
	})
	return k
}

func (k *keeperProcess) signal(s os.Signal) {
	k.t.Helper()
	if err := k.cmd.Process.Signal(s); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keeperProcess) log() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}

// said returns the lines that begin so, so far.
func (k *keeperProcess) said(prefix string) (found []keeperLine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.lines {
		if strings.HasPrefix(l.Msg, prefix) {
			found = append(found, l)
		}
	}
	return found
}

// The lines that tests look for.
const (
	saidKeeping = "keeping the directory"
	saidStandby = "standing by"
	saidLost    = "lost the lease"
	saidRemoved = "removed a file"
)

// token returns the token under which it works, 0 if it does not.
func (k *keeperProcess) token() uint64 {
	keeping, lost := k.said(saidKeeping), k.said(saidLost)
	if len(keeping) == 0 || len(lost) >= len(keeping) {
		return 0
	}
	return keeping[len(keeping)-1].Token
}

// stop ends it in order.
func (k *keeperProcess) stop() {
	k.t.Helper()
	k.signal(syscall.SIGTERM)
	select {
	case <-k.ended:
	case <-time.After(time.Minute):
		k.t.Fatal("the keeper does not stop")
	}
	if status := k.cmd.ProcessState.ExitCode(); status != 0 {
		k.t.Errorf("exit status %d", status)
	}
}

// eventually waits for something that processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// runKeep runs "kv3fs keep" to its end.
func runKeep(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	cmd := exec.Command(binary(t), append([]string{"keep"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func blockPath(n int) string { return fmt.Sprintf("%02x/%02x%030x", n%16, n%16, n) }

// putBlock makes a block of UCM's that was last used so long ago.
func putBlock(t *testing.T, dir string, n, size int, age time.Duration) {
	t.Helper()
	path := filepath.Join(dir, blockPath(n))
	at := time.Now().Add(-age)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600), os.Chtimes(path, at, at))
	if err != nil {
		t.Fatal(err)
	}
}

func blockBytes(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // files come and go
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}

// Of three keepers one is at work. One that is killed, or stopped for longer than its lease, is replaced by one
// with a larger token; one that comes back removes nothing but the file that it was about to, and stands by.
func TestKeepOneAtWork(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for leases to run out")
	}
	dir := t.TempDir()
	flags := []string{dir, "--capacity", "4MiB", "--lease", "3s", "--scan-every", "1s", "--grace", "1s", "--identity"}
	var all []*keeperProcess
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, startKeeper(t, append(flags, name)...))
	}
	// An engine that never stops writing.
	quit, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			path := filepath.Join(dir, blockPath(n))
			err := os.MkdirAll(filepath.Dir(path), 0o700)
			if err == nil {
				err = os.WriteFile(path, make([]byte, 64<<10), 0o600)
			}
			if err != nil {
				wrote <- err
				return
			}
			select {
			case <-quit:
				wrote <- nil
				return
			case <-tick.C:
			}
		}
	}()
	// worker waits until one of the others works under a larger token, and has removed something.
	worker := func(before uint64, except *keeperProcess) (w *keeperProcess) {
		t.Helper()
		eventually(t, fmt.Sprintf("a keeper at work with a token above %d", before), func() bool {
			for _, k := range all {
				if token := k.token(); k != except && token > before && slices.ContainsFunc(k.said(saidRemoved), func(l keeperLine) bool { return l.Token == token }) {
					w = k
					return true
				}
			}
			return false
		})
		return w
	}
	w := worker(0, nil)
	stopped := map[*keeperProcess]bool{}
	for { // until it was at work when it was stopped: where all is slow it may just have lost the lease
		token := w.token()
		w.signal(syscall.SIGSTOP)
		stopped[w] = true
		awaitStopped(t, w.cmd.Process.Pid)
		lost := len(w.said(saidLost))
		other := worker(token, w)
		held := w.token() == token
		w.signal(syscall.SIGCONT)
		if held {
			eventually(t, "the one that was stopped to notice", func() bool { return len(w.said(saidLost)) > lost })
			w = other
			break
		}
		w = worker(token, nil)
	}
	token := w.token()
	w.signal(syscall.SIGKILL)
	<-w.ended
	worker(token, w)
	close(quit)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the limit", func() bool { return blockBytes(dir) < 5<<20 })
	// A keeper removes nothing once another one has: but for the one file that it was about to when it was stopped.
	var removed []keeperLine
	of := map[uint64]*keeperProcess{}
	for _, k := range all {
		if k != w {
			k.stop()
		}
		removed = append(removed, k.said(saidRemoved)...)
		for _, l := range k.said(saidRemoved) {
			if of[l.Token] != nil && of[l.Token] != k {
				t.Errorf("token %d is that of two keepers", l.Token)
			}
			of[l.Token] = k
		}
	}
	slices.SortStableFunc(removed, func(a, b keeperLine) int { return a.Time.Compare(b.Time) })
	late := map[uint64]int{}
	var last uint64
	for _, l := range removed {
		if l.Token < last {
			late[l.Token]++
		}
		last = max(last, l.Token)
	}
	for token, n := range late { // one for each time that it was stopped, which is once under a token
		if !stopped[of[token]] || n > 1 {
			t.Errorf("%d files were removed under token %d after another one had been", n, token)
		}
	}
	t.Logf("%d files were removed, under tokens up to %d; late: %v", len(removed), last, late)
}

// What cannot be kept is refused, with the cure.
func TestKeepRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	planted := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(planted, ".kv3fs-keep"), 0o700), os.Chmod(filepath.Join(planted, ".kv3fs-keep"), 0o777)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{dir, exitUsage, "capacity"},
		{dir + " --capacity 1GiB --json", exitUsage, "add --dry-run or --once"},
		{dir + " --capacity 1GiB --once --dry-run", exitUsage, "can't be used together"},
		{dir + " --capacity 1GiB --low-watermark 96", exitUsage, "must be below --high-watermark"},
		{dir + " --capacity 1EiB", exitFailed, "is more than the file system of"},
		{dir + " --capacity 1EiB --dry-run", exitFailed, "is more than the file system of"},
		{dir + " --capacity 1GiB --must-be-mount", exitFailed, "is not a mount point"},
		{dir + "/none --capacity 1GiB", exitFailed, "mount it, or give"},
		{file + " --capacity 1GiB", exitFailed, "is not a directory"},
		{planted + " --capacity 1GiB", exitFailed, "can be written to by others"},
	} {
		status, out, errs := runKeep(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(errs, c.says) || out != "" && !strings.Contains(c.args, "dry-run") {
			t.Errorf("keep %s: status %d, %s%s", c.args, status, out, errs)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a refusal leaves %v, %v", entries, err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Logf("cannot mount read-only: %v", err)
		return
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if status, _, errs := runKeep(t, dir, "--capacity", "1MiB"); status != exitFailed || !strings.Contains(errs, "mounted read-only") {
		t.Errorf("read-only: status %d, %s", status, errs)
	}
	if status, out, errs := runKeep(t, dir, "--capacity", "1MiB", "--dry-run"); status != 0 || !strings.Contains(out, "would remove 0 files") {
		t.Errorf("read-only, --dry-run: status %d, %s%s", status, out, errs)
	}
}

// A directory has one keeper: a daemon with a capacity and "keep" exclude each other, be it in its data directory,
// below that, or in its mount.
func TestKeepBesideDaemon(t *testing.T) {
	skipWithoutFUSE(t)
	d := daemontest.ServeWith(t, daemontest.Options{Binary: binary(t), Flags: []string{"--capacity", "1GiB"}})
	below := filepath.Join(d.Data, "below")
	if err := os.Mkdir(below, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{d.Data, below, d.Mount, filepath.Join(d.Mount, "below")} {
		if status, _, errs := runKeep(t, dir, "--capacity", "1MiB", "--once"); status != exitFailed || !strings.Contains(errs, "--capacity") || !strings.Contains(errs, "leave it to the daemon") {
			t.Errorf("%s: status %d, %s", dir, status, errs)
		}
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	k := startKeeper(t, below, "--capacity", "1MiB")
	eventually(t, "the keeper", func() bool { return k.token() > 0 })
	out, err := exec.Command(binary(t), "serve", "--data", d.Data, "--mount", d.Mount, "--pages-listen", "off", "--capacity", "1GiB").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "kv3fs keep keeps data directory") {
		t.Errorf("a daemon with a capacity beside it: %v, %s", err, out)
	}
	k.stop()
	// One without a capacity is kept, also through its mount.
	plain := daemontest.ServeWith(t, daemontest.Options{Binary: binary(t)})
	for n := range 8 {
		putBlock(t, plain.Mount, n, 1<<20, time.Hour)
	}
	if status, out, errs := runKeep(t, plain.Mount, "--capacity", "4MiB", "--once"); status != 0 || !strings.Contains(out, "removed 5 files") {
		t.Errorf("the mount: status %d, %s%s", status, out, errs)
	}
	// Of one that hosts share, the mount does not show what keepers have.
	shared := daemontest.ServeWith(t, daemontest.Options{Binary: binary(t), Flags: []string{"--shared", "on", "--pages-listen", "off"}})
	if status, _, errs := runKeep(t, shared.Mount, "--capacity", "4MiB", "--once"); status != 1 || !strings.Contains(errs, "which hosts share: keep that directory") {
		t.Errorf("the mount of a shared directory: status %d, %s", status, errs)
	}
	if status, out, errs := runKeep(t, shared.Data, "--capacity", "4MiB", "--once"); status != 0 {
		t.Errorf("the shared directory: status %d, %s%s", status, out, errs)
	}
}

// A directory that is full is emptied although nothing can be written there, and --once says what it has come to.
func TestKeepOnce(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	var err error
	for n := 0; err == nil; n++ {
		path := filepath.Join(dir, blockPath(n))
		at := time.Now().Add(-time.Hour)
		if err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 512<<10), 0o600)); err == nil {
			err = os.Chtimes(path, at, at)
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	status, out, errs := runKeep(t, dir, "--capacity", "50%", "--once")
	if status != 0 || !strings.HasPrefix(out, "removed ") || blockBytes(dir) > 4<<20 {
		t.Errorf("a full disk: status %d, %s%s", status, out, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out, errs := runKeep(t, dir, "--capacity", "2MiB", "--once"); status != exitOver || !strings.Contains(errs, "nothing more may go") {
		t.Errorf("a file that may not go: status %d, %s%s", status, out, errs)
	}
	k := startKeeper(t, dir, "--capacity", "4MiB", "--lease", "3s")
	eventually(t, "the keeper", func() bool { return k.token() > 0 })
	if status, out, errs := runKeep(t, dir, "--capacity", "4MiB", "--lease", "3s", "--once"); status != exitStandby || !strings.Contains(errs, "already") || out != "" {
		t.Errorf("another keeper: status %d, %s%s", status, out, errs)
	}
	// Operators reach it.
	putBlock(t, dir, 1, 64<<10, time.Hour)
	for _, c := range []struct{ args, says string }{
		{"pin " + filepath.Join(dir, filepath.Dir(blockPath(1))), ""},
		{"du " + dir, "0f"},
		{"pin --data " + dir, filepath.Dir(blockPath(1))},
	} {
		status, out, errs := usage(strings.Fields(c.args)...)
		if status != 0 || !strings.Contains(out, c.says) {
			t.Errorf("kv3fs %s: status %d, %s%s", c.args, status, out, errs)
		}
	}
	k.stop()
	if status, out, errs := runKeep(t, dir, "--capacity", "1MiB", "--dry-run"); status != 0 || !strings.Contains(out, "pinned") {
		t.Errorf("the pin is forgotten: status %d, %s%s", status, out, errs)
	}
	if status, out, errs := runKeep(t, dir, "--capacity", "4MiB", "--once", "--json"); status != 0 {
		t.Errorf("--json: status %d, %s%s", status, out, errs)
	} else {
		checkJSON(t, "keep", out)
	}
}

// --dry-run changes nothing, and names survive its lists.
func TestKeepDryRun(t *testing.T) {
	dir := t.TempDir()
	for n := range 8 {
		putBlock(t, dir, n, 1<<20, time.Duration(20-n)*time.Hour)
	}
	odd := "new\nline \xff\x1b[31m"
	if err := os.WriteFile(filepath.Join(dir, odd), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	listing := func() (all []string) {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(path, &st)
			}
			all = append(all, fmt.Sprint(path, st.Ino, st.Size, st.Mtim, st.Ctim))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := listing()
	status, out, errs := runKeep(t, dir, "--capacity", "5MiB", "--dry-run")
	if status != 0 || errs != "" || strings.Count(out, "\ngoes ") != 4 || strings.Count(out, "\n") != 11 || !strings.Contains(out, `"new\nline \xff\x1b[31m"`) ||
		!strings.Contains(out, "would remove 4 files of 4.0 MiB;") || strings.Index(out, blockPath(0)) > strings.Index(out, blockPath(1)) {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	status, out, errs = runKeep(t, dir, "--capacity", "5MiB", "--dry-run", "--json")
	if status != 0 || errs != "" {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	checkJSON(t, "keep", out)
	var report struct {
		keepReport
		envelope
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Files) != 9 || !report.Files[3].Goes || report.Files[4].Goes || report.Files[0].Path != blockPath(0) || report.Files[0].Why != "room" {
		t.Errorf("%+v", report)
	}
	at := slices.IndexFunc(report.Files, func(f keepFile) bool { return f.Why == "unknown-layout" })
	if exact := report.NotUTF8[fmt.Sprintf("/files/%d/path", at)]; string(exact) != odd {
		t.Errorf("the name is %q, want %q", exact, odd)
	}
	if after := listing(); !slices.Equal(before, after) {
		t.Errorf("it has changed\n%q\ninto\n%q", before, after)
	}
}
