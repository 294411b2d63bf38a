package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ebitengine/purego"
)

// The tests run over a library of this repository, testdata/hostcuda.c, that has the same
// symbols as CUDA's and moves host memory. Those of gpu_test.go need a GPU.

var hostLibrary, hostFileLibrary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kv3fs-hostcuda-")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir) // in the directory for temporary files
	os.Exit(code)
}

func build(dir string) error {
	hostLibrary, hostFileLibrary = filepath.Join(dir, "libhostcuda.so"), filepath.Join(dir, "libhostcufile.so")
	for _, args := range [][]string{
		{"-o", hostLibrary, "testdata/hostcuda.c"},
		{"-o", hostFileLibrary, "testdata/hostcufile.c", "-L" + dir, "-lhostcuda", "-Wl,-rpath," + dir},
	} {
		cc := exec.Command("cc", append([]string{"-Wall", "-shared", "-fPIC", "-O1", "-pthread", "-Wno-parentheses"}, args...)...)
		if out, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("cc: %w\n%s", err, out)
		}
	}
	return nil
}

// open opens the device of the host library and checks at the end that nothing is left.
func open(t *testing.T) *Device {
	t.Helper()
	left := get(t, "ranges")
	t.Cleanup(func() {
		if n := get(t, "ranges"); n != left {
			t.Errorf("%d allocations and registrations are left, there were %d", n, left)
		}
	})
	return openLeaky(t)
}

// openLeaky is open for a test that leaves memory with the device.
func openLeaky(t *testing.T) *Device {
	t.Helper()
	d, err := Open(Options{Library: hostLibrary, FileLibrary: hostFileLibrary})
	if err != nil {
		t.Fatal(err)
	}
	wrong := get(t, "violations")
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := get(t, "violations"); n != wrong {
			t.Errorf("memory was released %d times while a copy used it", n-wrong)
		}
	})
	return d
}

// set makes something go wrong until the test ends.
func set(t *testing.T, what string, value int) {
	t.Helper()
	var fn func(string, int)
	host(t, hostLibrary, "hostcuda_set", &fn)
	fn(what, value)
	back := 0
	if what == "delay_us" {
		back = 20
	}
	t.Cleanup(func() { fn(what, back) })
}

func get(t *testing.T, what string) (n int) {
	t.Helper()
	var fn func(string) int
	host(t, hostLibrary, "hostcuda_get", &fn)
	return fn(what)
}

func setFile(t *testing.T, what string, value int) {
	t.Helper()
	var fn func(string, int)
	host(t, hostFileLibrary, "hostcufile_set", &fn)
	fn(what, value)
	back := 0
	if what == "most" {
		back = 1 << 30
	}
	t.Cleanup(func() { fn(what, back) })
}

func host(t *testing.T, path, name string, fn any) {
	t.Helper()
	lib, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	symbol, err := purego.Dlsym(uintptr(lib), name)
	if err != nil {
		t.Fatal(err)
	}
	purego.RegisterFunc(fn, symbol)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
