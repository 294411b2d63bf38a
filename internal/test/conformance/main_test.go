package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// runDir holds everything of one run. Other users can traverse it.
var runDir string

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		os.Exit(child(mode, os.Args[1:]))
	}
	var err error
	if runDir, err = os.MkdirTemp(os.Getenv("KV3FS_TEST_DIR"), "kv3fs-conformance-"); err == nil {
		runDir, err = filepath.EvalSymlinks(runDir)
	}
	if err == nil {
		err = os.Chmod(runDir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if !endShared() && code == 0 {
		code = 1
	}
	if left := mountsBelow(runDir); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: mounts left behind:", left)
		code = 1
	} else {
		os.RemoveAll(runDir)
	}
	os.Exit(code)
}

// notTested ends a test that cannot be run here, loudly.
func notTested(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %s", why)
	}
	t.Skipf("NOT TESTED: %s", why)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		notTested(t, "other users and mounts of our own need root")
	}
}

// built is something made once per run.
type built struct {
	once sync.Once
	path string
	err  error
}

func (b *built) get(t *testing.T, build func(dir string) (path string, cmds []*exec.Cmd)) string {
	t.Helper()
	b.once.Do(func() {
		path, cmds := build(runDir)
		for _, c := range cmds {
			if out, err := c.CombinedOutput(); err != nil {
				b.err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
				return
			}
		}
		b.path = path
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

var (
	plainBinary, raceBinary, toolBinary, aioBinary, selfBinary built
)

const repository = "../../.."

func goBuild(out string, env string, flags ...string) *exec.Cmd {
	args := append([]string{"build", "-trimpath", "-o", out}, flags...)
	c := exec.Command("go", append(args, "./cmd/kv3fs")...)
	c.Dir = repository
	c.Env = append(os.Environ(), env)
	return c
}

// kv3fs is the binary under test.
func kv3fs(t *testing.T) string {
	return plainBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		if given := os.Getenv("KV3FS_BINARY"); given != "" {
			return given, nil
		}
		out := filepath.Join(dir, "kv3fs")
		return out, []*exec.Cmd{goBuild(out, "CGO_ENABLED=0")}
	})
}

// usrbioTool is the scripted driver of the C library, beside its library.
func usrbioTool(t *testing.T) string {
	return toolBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		build := filepath.Join(dir, "c")
		return filepath.Join(build, "usrbio_tool"), []*exec.Cmd{
			exec.Command("make", "-s", "-C", repository+"/clients/c", "BUILD="+build, "tools"),
			exec.Command("chmod", "-R", "a+rX", build),
		}
	})
}

// self is this test binary where every user can run it.
func self(t *testing.T) string {
	return selfBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		out := filepath.Join(dir, "self.test")
		return out, []*exec.Cmd{exec.Command("cp", os.Args[0], out), exec.Command("chmod", "755", out)}
	})
}
