package cuda

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ebitengine/purego"

	"github.com/kv3fs/kv3fs/cuda/internal/hostlib"
)

// The tests run over a library of this repository, testdata/hostcuda.c, that has the same
// symbols as CUDA's and moves host memory. Those of gpu_test.go need a GPU.

var scratch string

// hostLibraries builds the libraries once, when a test needs them: tests on a GPU need no
// compiler.
var hostLibraries = sync.OnceValues(func() (hostlib.Libraries, error) { return hostlib.Build(scratch, "testdata") })

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "kv3fs-hostcuda-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch) // in the directory for temporary files
	os.Exit(code)
}

func built(t testing.TB) hostlib.Libraries {
	t.Helper()
	l, err := hostLibraries()
	must(t, err)
	return l
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
	return openLeaky(t, 0)
}

// openLeaky is open for a test that leaves memory with the device. Its last copies may still be
// ending when the test ends.
func openLeaky(t *testing.T, ordinal int) *Device {
	t.Helper()
	l := built(t)
	d, err := Open(Options{Ordinal: ordinal, Library: l.CUDA, FileLibrary: l.CuFile})
	if err != nil {
		t.Fatal(err)
	}
	wrong := get(t, "violations")
	t.Cleanup(func() {
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			err := d.Close()
			if err == nil {
				break
			}
			if time.Now().After(until) {
				t.Errorf("Close: %v", err)
				break
			}
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
	host(t, built(t).CUDA, "hostcuda_set", &fn)
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
	host(t, built(t).CUDA, "hostcuda_get", &fn)
	return fn(what)
}

func setFile(t *testing.T, what string, value int) {
	t.Helper()
	var fn func(string, int)
	host(t, built(t).CuFile, "hostcufile_set", &fn)
	fn(what, value)
	back := 0
	if what == "most" {
		back = 1 << 30
	}
	t.Cleanup(func() { fn(what, back) })
}

// host sets fn to a function of a library.
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
