// Package hostlib builds the libraries that the tests run over: a libcuda and a libcufile of
// this repository that have the same symbols and move host memory.
package hostlib

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// Libraries are paths of what was built.
type Libraries struct{ CUDA, CuFile string }

// Build compiles the sources in directory testdata into dir.
func Build(dir, testdata string) (Libraries, error) {
	l := Libraries{filepath.Join(dir, "libhostcuda.so"), filepath.Join(dir, "libhostcufile.so")}
	for _, args := range [][]string{
		{"-shared", "-o", l.CUDA, filepath.Join(testdata, "hostcuda.c")},
		{"-shared", "-o", l.CuFile, filepath.Join(testdata, "hostcufile.c"), "-L" + dir, "-lhostcuda", "-Wl,-rpath," + dir},
	} {
		if err := Compile(args...); err != nil {
			return l, err
		}
	}
	return l, nil
}

// Compile calls the C compiler. What does not agree with a prototype is an error.
func Compile(args ...string) error {
	flags := []string{"-Wall", "-Wmissing-prototypes", "-Wno-parentheses", "-Werror", "-fPIC", "-O1", "-pthread"}
	if out, err := exec.Command("cc", append(flags, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	return nil
}
