package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{
		"4096": 4096, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kib": 4096, "4KB": 4000, "256 KiB": 256 << 10,
		"1.5m": 3 << 19, "2GiB": 2 << 30, "1t": 1 << 40,
	} {
		var b byteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || int64(b) != want {
			t.Errorf("%q is %d, %v; want %d", text, b, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "4 cats", "1e99", "99999999999t"} {
		var b byteSize
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was taken for %d", text, b)
		}
	}
}

// served is a daemon, run from the real binary, that serves a directory.
type served struct {
	bin, data, mount string
	cmd              *exec.Cmd
	log              bytes.Buffer
}

// binary returns the path of the program, which is built once for all tests.
func binary(t *testing.T) string {
	t.Helper()
	bin, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func skipWithoutFUSE(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts daemons")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	f.Close()
}

// serve starts a daemon over data, with more flags, and stops it when the test ends.
func serve(t *testing.T, bin, data string, flags ...string) *served {
	t.Helper()
	s := &served{bin: bin, data: data, mount: filepath.Join(t.TempDir(), "mnt")}
	s.cmd = exec.Command(bin, append([]string{"serve", "--data", s.data, "--mount", s.mount, "--drain", "2s"}, flags...)...)
	s.cmd.Stderr = &s.log
	s.cmd.Env = append(os.Environ(), "KV3FS_RESTART_STATE=off") // what is killed here has no successor
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(20*time.Second, func() { s.cmd.Process.Kill() })
		s.cmd.Wait()
		killer.Stop()
		unix.Unmount(s.mount, unix.MNT_DETACH) // only there after a kill
		if t.Failed() {
			t.Logf("the daemon said:\n%s", s.log.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		m, err := usrbio.Open(t.Context(), s.mount)
		if err == nil {
			m.Close(t.Context())
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("no mount: %v", err)
		}
	}
}

func (s *served) replayArgs(trace string, args ...string) []string {
	return append([]string{"replay", "--trace", trace, "--mount", s.mount, "--json"}, args...)
}

// replay runs a replay to its end.
func (s *served) replay(t *testing.T, trace string, args ...string) (r workload.Report, stderr string, err error) {
	t.Helper()
	return s.replayFrom(t, "", trace, args...)
}

// replayFrom is replay with a file that is piped to its standard input.
func (s *served) replayFrom(t *testing.T, piped, trace string, args ...string) (r workload.Report, stderr string, err error) {
	t.Helper()
	cmd := exec.Command(s.bin, s.replayArgs(trace, args...)...)
	if piped != "" {
		f, err := os.Open(piped)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.Stdin = io.MultiReader(f) // no *os.File, so a pipe
	}
	var stdout, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &errs
	killer := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	defer killer.Stop()
	err = cmd.Run()
	if stdout.Len() > 0 {
		if e := json.Unmarshal(stdout.Bytes(), &r); e != nil {
			t.Fatalf("%v in %s", e, stdout.String())
		}
	}
	return r, errs.String(), err
}

// makeTrace writes a trace and surveys it.
func makeTrace(t *testing.T, requests int) (path string, s workload.Survey) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "trace.jsonl")
	var b bytes.Buffer
	if err := workload.Generate(&b, workload.GenerateOptions{Requests: requests, Seed: 5, QuestionTokens: 3000, TurnsPerSession: 3, ThinkTime: time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := workload.TakeSurvey(workload.NewReader(&b, path), 0)
	if err != nil {
		t.Fatal(err)
	}
	return path, s
}

// checkNoTemps fails if a replay left something behind.
func (s *served) checkNoTemps(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(s.data, "kv3fs-replay", "tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("temporary files stayed behind: %v", err)
	}
	links, err := os.ReadDir(filepath.Join(s.mount, "3fs-virt", "iovs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if !strings.HasPrefix(l.Name(), "submit-ios") {
			t.Errorf("%s is still registered", l.Name())
		}
	}
}

func TestReplay(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	trace, survey := makeTrace(t, 150)

	t.Run("cold, then warm, then after a restart", func(t *testing.T) {
		data := t.TempDir()
		s := serve(t, bin, data)
		const blockBytes = 9001 // neither a power of two nor aligned
		args := []string{"--ranks", "2", "--depth", "8", "--block-bytes", fmt.Sprint(blockBytes)}
		cold, stderr, err := s.replay(t, trace, args...)
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if cold.Requests != survey.Requests || cold.HitTokens != survey.HitTokens || cold.HitBlocks != survey.HitBlocks || cold.EarlierHitBlocks != 0 {
			t.Errorf("cold: %+v\ntrace: %+v", cold, survey)
		}
		if cold.StoredBlocks != int64(survey.DistinctBlocks) || cold.StoreBytes != cold.StoredBlocks*2*blockBytes || cold.LoadBytes != cold.HitBlocks*2*blockBytes {
			t.Errorf("cold: stored %d blocks of %d, %d bytes; loaded %d bytes", cold.StoredBlocks, survey.DistinctBlocks, cold.StoreBytes, cold.LoadBytes)
		}
		if cold.BlockLoad.Count != 2*cold.HitBlocks || cold.Lookup.Count != int64(survey.Requests) || cold.BlockLoad.P50 <= 0 || cold.BlockLoad.P99 < cold.BlockLoad.P50 {
			t.Errorf("latencies: %+v %+v", cold.BlockLoad, cold.Lookup)
		}
		s.checkNoTemps(t)

		for _, s := range []*served{s, nil} {
			if s == nil { // only the data directory carries over
				s = serve(t, bin, copyTree(t, data))
			}
			warm, stderr, err := s.replay(t, trace, args...)
			if err != nil || warm.HitTokens != warm.Tokens || warm.EarlierHitBlocks != warm.Blocks || warm.StoredBlocks != 0 {
				t.Errorf("warm: %v %s\n%+v", err, stderr, warm)
			}
		}
	})

	t.Run("stops writing at the cap", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		r, stderr, err := s.replay(t, trace, "--block-bytes", "4k", "--max-blocks", "40", "--dir", "a/b")
		if want := fmt.Sprintf("will write at most 40 blocks, 160 KiB, to %s/a/b, which has ", s.mount); !strings.Contains(stderr, want) {
			t.Errorf("%q is not announced: %s", want, stderr)
		}
		if err != nil || r.StoredBlocks != 40 || r.HitBlocks+r.StoredBlocks+r.SkippedBlocks != r.Blocks {
			t.Errorf("%v %s\n%+v", err, stderr, r)
		}
		files := 0
		filepath.WalkDir(filepath.Join(s.data, "a/b"), func(_ string, d fs.DirEntry, _ error) error {
			if !d.IsDir() {
				files++
			}
			return nil
		})
		if files != 40 {
			t.Errorf("%d files", files)
		}
	})

	t.Run("finds a flipped byte, a short file and a hole", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		if _, stderr, err := s.replay(t, trace, "--block-bytes", "64k"); err != nil {
			t.Fatal(err, stderr)
		}
		blocks, err := filepath.Glob(filepath.Join(s.data, "kv3fs-replay", "*", "*-r0-65536"))
		if err != nil || len(blocks) < 3 {
			t.Fatal(blocks, err)
		}
		f, err := os.OpenFile(blocks[0], os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		f.ReadAt(b, 12345)
		b[0] ^= 1
		f.WriteAt(b, 12345)
		f.Close()
		os.Truncate(blocks[1], 5000)
		os.Truncate(blocks[2], 0)
		os.Truncate(blocks[2], 65536)

		r, stderr, err := s.replay(t, trace, "--block-bytes", "64k")
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("ended with %v", err)
		}
		// Each block is wrong only once: replay writes a wrong block again.
		if r.WrongBlocks != 3 || r.WrongBytes < 1+60536+65000 || r.WrongBytes > 1+60536+65536 || r.Errors != 0 {
			t.Errorf("%d wrong bytes in %d blocks, %d errors", r.WrongBytes, r.WrongBlocks, r.Errors)
		}
		for i, want := range []string{"1 of 65536 bytes wrong, the first at offset 12345", "the read ended after 5000 bytes", "zeros as in a hole"} {
			path := strings.TrimPrefix(blocks[i], s.data)
			if !strings.Contains(stderr, want) || !strings.Contains(stderr, path) {
				t.Errorf("want %q and %s in:\n%s", want, path, stderr)
			}
			if _, err := os.Stat(blocks[i] + ".wrong-1"); err != nil {
				t.Errorf("the evidence: %v", err)
			}
		}
		if again, stderr, err := s.replay(t, trace, "--block-bytes", "64k"); err != nil || again.HitTokens != again.Tokens {
			t.Errorf("not repaired: %v %s", err, stderr)
		}
	})

	t.Run("an interrupt ends it cleanly with the table so far", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		cmd := exec.Command(bin, s.replayArgs(trace, "--block-bytes", "4k", "--speed", "1")...)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitFile(t, filepath.Join(s.data, "kv3fs-replay", "0*", "*"))
		cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		var r workload.Report
		if e := json.Unmarshal(stdout.Bytes(), &r); e != nil || r.Requests == 0 || r.Requests == survey.Requests || r.StoredBlocks == 0 {
			t.Errorf("%v: %+v", e, r)
		}
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
			t.Errorf("ended with %v", err)
		}
		s.checkNoTemps(t)
	})

	t.Run("a killed one leaves no memory, and no file that the next does not remove", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		cmd := exec.Command(bin, s.replayArgs(trace, "--block-bytes", "4k", "--speed", "1")...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitFile(t, filepath.Join(s.data, "kv3fs-replay", "0*", "*"))
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if !bytes.Contains(maps, []byte("/dev/shm/hf3fs-iov-")) {
			t.Errorf("no iov in the map of the replay:\n%s", maps)
		}
		cmd.Process.Kill()
		cmd.Wait()
		for line := range strings.Lines(string(maps)) {
			if _, object, ok := strings.Cut(line, "/dev/shm/hf3fs-iov-"); ok {
				name := strings.Fields(object)[0]
				if _, err := os.Stat("/dev/shm/hf3fs-iov-" + name); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("iov %s stayed behind: %v", name, err)
				}
			}
		}
		temps, _ := filepath.Glob(filepath.Join(s.data, "kv3fs-replay", "tmp", "*"))
		if len(temps) != 1 {
			t.Fatalf("temporary directories: %v", temps)
		}
		if err := os.WriteFile(filepath.Join(temps[0], "0-99"), []byte("half a block"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, stderr, err := s.replay(t, trace, "--block-bytes", "4k"); err != nil || !strings.Contains(stderr, "temporary files of replays that were killed") {
			t.Errorf("%v: %s", err, stderr)
		}
		s.checkNoTemps(t)
	})

	t.Run("a daemon that is killed ends it with an error", func(t *testing.T) {
		s := serve(t, bin, t.TempDir())
		cmd := exec.Command(bin, s.replayArgs(trace, "--block-bytes", "4k", "--speed", "1")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitFile(t, filepath.Join(s.data, "kv3fs-replay", "0*", "*"))
		s.cmd.Process.Kill()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(stderr.String(), "daemon") {
				t.Errorf("%v: %s", err, stderr.String())
			}
		case <-time.After(time.Minute):
			cmd.Process.Kill()
			t.Errorf("still running: %s", stderr.String())
		}
	})

	t.Run("a full disk stops the writing and nothing else", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can mount a small tmpfs")
		}
		data := t.TempDir()
		if err := unix.Mount("tmpfs", data, "tmpfs", 0, "size=4m"); err != nil {
			t.Skipf("no tmpfs: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(data, unix.MNT_DETACH) })
		s := serve(t, bin, data)
		_, stderr, err := s.replay(t, trace, "--block-bytes", "64k", "--ranks", "2", "--max-blocks", "1000000")
		if err == nil || !strings.Contains(stderr, "the replay would write ") {
			t.Errorf("a trace that cannot fit: %v: %s", err, stderr)
		}
		// Of a pipe, it is not known beforehand.
		r, stderr, err := s.replayFrom(t, trace, "-", "--block-bytes", "64k", "--ranks", "2", "--max-blocks", "1000000")
		if err == nil || !strings.Contains(stderr, "no space left") || !strings.Contains(stderr, "--max-blocks") {
			t.Errorf("%v: %s", err, stderr)
		}
		if r.Requests != survey.Requests || r.NoSpaceBlocks == 0 || r.StoredBlocks < 8 || r.HitBlocks == 0 || r.WrongBytes != 0 || r.Errors != 0 {
			t.Errorf("%+v", r)
		}
		s.checkNoTemps(t)
	})

	t.Run("says what to do where there is no mount", func(t *testing.T) {
		out, err := exec.Command(bin, "replay", "--trace", trace, "--mount", t.TempDir()).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("kv3fs serve --data DIR --mount")) {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// awaitFile waits until something matches pattern.
func awaitFile(t *testing.T, pattern string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing at %s", pattern)
		}
	}
}

// copyTree copies a data directory without the daemon's own state.
func copyTree(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == ".kv3fs" { // the daemon's own, with a socket in it
			continue
		}
		if err := exec.Command("cp", "-a", filepath.Join(dir, e.Name()), to).Run(); err != nil {
			t.Fatal(err)
		}
	}
	return to
}
