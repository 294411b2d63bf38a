package daemontest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

// Main runs a package's tests and returns the status to exit with, for TestMain. It ends
// the shared daemon, removes Dir and fails the package if the tests leave a mount or
// whatever package leaktest finds. Options go to leaktest.Main.
func Main(m *testing.M, options ...goleak.Option) int {
	return leaktest.Main(suite{m}, options...)
}

type suite struct{ m *testing.M }

func (s suite) Run() int {
	status := s.m.Run()
	if err := errors.Join(endShared(), removeDir()); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return max(status, 1)
	}
	return status
}

// runDir holds everything of one run. Other users can traverse it.
var runDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv("KV3FS_TEST_DIR"), "kv3fs-test-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return dir, err
})

// RunDir is Dir for code that has no test.
func RunDir() (string, error) { return runDir() }

// Dir returns a directory that exists until Main returns and that other users can
// traverse.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := runDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func removeDir() error {
	dir, err := runDir()
	if err != nil {
		return nil // no test could use it
	}
	if left := MountsBelow(dir); len(left) > 0 {
		return fmt.Errorf("mounts left behind: %v", left)
	}
	return os.RemoveAll(dir)
}

// NewDir returns a directory of the test's own in Dir, which other users can traverse. It
// is removed when the test ends, unless something is mounted in it.
func NewDir(t testing.TB) string {
	t.Helper()
	dir, err := newDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeUnmounted(dir) })
	return dir
}

func newDir() (string, error) {
	run, err := runDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(run, "dir-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

func removeUnmounted(dir string) {
	if len(MountsBelow(dir)) == 0 {
		_ = os.RemoveAll(dir) // what is left goes with Dir
	}
}

// MountsBelow lists mount points at or below dir.
func MountsBelow(dir string) (found []string) {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			found = append(found, f[4])
		}
	}
	return found
}

// Binary returns the path of kv3fs, which it builds once for a package's tests.
// KV3FS_BINARY names another one.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("KV3FS_BINARY"); path != "" {
		return filepath.Abs(path) // daemons run in /
	}
	dir, err := runDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kv3fs")
	return path, Build(path, "CGO_ENABLED=0")
})

// Build builds kv3fs as path, with an addition to the environment and further flags of
// go build. It asserts invariants if the test does, unless the flags name other tags.
func Build(path, env string, flags ...string) error {
	args := []string{"build", "-o", path}
	if invariants.Enabled {
		args = append(args, "-tags", "invariants")
	}
	args = append(args, flags...)
	cmd := exec.Command("go", append(args, "github.com/kv3fs/kv3fs/cmd/kv3fs")...)
	cmd.Env = append(os.Environ(), env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build kv3fs: %w\n%s", err, out)
	}
	return nil
}

// NotTested ends a test that cannot run here: it skips it, or fails it where
// KV3FS_REQUIRE_MOUNTS=1 wants every test to run.
func NotTested(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %s", why)
	}
	t.Skipf("NOT TESTED: %s", why)
}

// NeedMounts ends a test where nothing can be mounted.
func NeedMounts(t testing.TB) {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		NotTested(t, err.Error())
	}
	fuse.Close()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			NotTested(t, "neither root nor fusermount3")
		}
	}
}

// NeedRoot ends a test that does not run as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		NotTested(t, "other users and mounts of our own need root")
	}
}
