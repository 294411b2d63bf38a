package main

import (
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/kv3fs/kv3fs/cuda"
	"github.com/kv3fs/kv3fs/cuda/internal/hostlib"
)

// Over the library of this repository all steps run and verify, and copies that are lost are
// seen: the report says WRONG, and the command fails.
func TestRun(t *testing.T) {
	l, err := hostlib.Build(t.TempDir(), "../testdata")
	if err != nil {
		t.Fatal(err)
	}
	o := options{device: cuda.Options{Library: l.CUDA, FileLibrary: l.CuFile}, blockMiB: 1, blocks: 3, times: 2, dir: t.TempDir()}
	var out strings.Builder
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if n := strings.Count(out.String(), "right\n"); n != 7 || !strings.Contains(out.String(), "host memory, no GPU (CUDA 0)") {
		t.Errorf("%d steps are right\n%s", n, out.String())
	}
	lib, err := purego.Dlopen(l.CUDA, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	var set func(string, int)
	purego.RegisterLibFunc(&set, lib, "hostcuda_set")
	set("lose_copies", 1000)
	defer set("lose_copies", 0)
	out.Reset()
	if err := run(t.Context(), o, &out); err == nil || !strings.Contains(out.String(), "WRONG") {
		t.Errorf("copies were lost: %v\n%s", err, out.String())
	}
}
