package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		os.Exit(child(mode, os.Args[1:]))
	}
	os.Exit(daemontest.Main(m))
}

// built is a file built once per run.
type built struct {
	once sync.Once
	path string
	err  error
}

func (b *built) get(t *testing.T, build func(dir string) (path string, cmds []*exec.Cmd)) string {
	t.Helper()
	dir := daemontest.Dir(t)
	b.once.Do(func() {
		path, cmds := build(dir)
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
	toolBinary, aioBinary, selfBinary built
)

const repository = "../../.."

// kv3fs returns the path of the binary under test.
func kv3fs(t *testing.T) string {
	t.Helper()
	path, err := daemontest.Binary()
	must(t, err)
	return path
}

// usrbioTool returns the path of a program that drives the C library from a script. The
// library is in the same directory.
func usrbioTool(t *testing.T) string {
	return toolBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		build := filepath.Join(dir, "c")
		return filepath.Join(build, "usrbio_tool"), []*exec.Cmd{
			exec.Command("make", "-s", "-C", repository+"/clients/c", "BUILD="+build, "tools"),
			exec.Command("chmod", "-R", "a+rX", build),
		}
	})
}

// self returns the path of a copy of this test binary that every user can run.
func self(t *testing.T) string {
	return selfBinary.get(t, func(dir string) (string, []*exec.Cmd) {
		out := filepath.Join(dir, "self.test")
		return out, []*exec.Cmd{exec.Command("cp", os.Args[0], out), exec.Command("chmod", "755", out)}
	})
}
