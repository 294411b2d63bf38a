package cuda

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/kv3fs/kv3fs/cuda/internal/hostlib"
	"github.com/kv3fs/kv3fs/kvstore/device"
)

// prototype is a function of testdata/abi.h. Types are those of C, without names.
type prototype struct {
	result     string
	parameters []string
}

var (
	prototypeLine = regexp.MustCompile(`(?m)^([A-Za-z_]\w*) (cu\w+)\(([^)]*)\);$`)
	parameterName = regexp.MustCompile(`\w+$`)
)

func prototypes(t *testing.T) map[string]prototype {
	t.Helper()
	header, err := os.ReadFile("testdata/abi.h")
	must(t, err)
	all := map[string]prototype{}
	for _, m := range prototypeLine.FindAllStringSubmatch(string(header), -1) {
		p := prototype{result: m[1]}
		for parameter := range strings.SplitSeq(m[3], ", ") {
			if parameter != "void" {
				p.parameters = append(p.parameters, strings.TrimSpace(parameterName.ReplaceAllString(parameter, "")))
			}
		}
		all[m[2]] = p
	}
	return all
}

// bound returns the Go types of the functions that the package calls by name.
func bound() map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, of := range []reflect.Type{reflect.TypeFor[driver](), reflect.TypeFor[fileDriver]()} {
		for field := range of.Fields() {
			if strings.HasPrefix(field.Name, "cu") {
				all[field.Name] = field.Type
			}
		}
	}
	moves := reflect.TypeFor[func(handle, base, size, fileOffset, offset uintptr) int64]() // see directFile.once
	all["cuFileRead"], all["cuFileWrite"] = moves, moves
	return all
}

// measured compiles a program that prints expressions of C, and returns their values.
func measured(t *testing.T, expressions []string) map[string]int {
	t.Helper()
	dir := t.TempDir()
	var source strings.Builder
	source.WriteString("#include <stdio.h>\n#include \"abi.h\"\nint main(void) {\n")
	for _, e := range expressions {
		fmt.Fprintf(&source, "\tprintf(\"%%ld\\n\", (long)(%s));\n", e)
	}
	source.WriteString("\treturn 0;\n}\n")
	file, program := filepath.Join(dir, "abi.c"), filepath.Join(dir, "abi")
	must(t, os.WriteFile(file, []byte(source.String()), 0o600))
	must(t, hostlib.Compile("-Itestdata", "-o", program, file))
	out, err := exec.Command(program).Output()
	must(t, err)
	lines := strings.Fields(string(out))
	if len(lines) != len(expressions) {
		t.Fatalf("%d values of %d expressions", len(lines), len(expressions))
	}
	values := map[string]int{}
	for i, e := range expressions {
		var n int
		_, err := fmt.Sscan(lines[i], &n)
		must(t, err)
		values[e] = n
	}
	return values
}

// Structures and constants are those of the header.
func TestLayout(t *testing.T) {
	want := map[string]int{
		"sizeof(CUfileDescr_t)":              int(unsafe.Sizeof(descriptor{})),
		"offsetof(CUfileDescr_t, type)":      int(unsafe.Offsetof(descriptor{}.kind)),
		"offsetof(CUfileDescr_t, handle)":    int(unsafe.Offsetof(descriptor{}.fd)),
		"offsetof(CUfileDescr_t, handle.fd)": int(unsafe.Offsetof(descriptor{}.fd)),
		"offsetof(CUfileDescr_t, fs_ops)":    int(unsafe.Offsetof(descriptor{}.fsOps)),
		"sizeof(CUfileError_t)":              8, // so that a register returns it
		"offsetof(CUfileError_t, err)":       0, // its lower half, see status
		"offsetof(CUfileError_t, cu_err)":    4,
		"CU_FILE_HANDLE_TYPE_OPAQUE_FD":      handleOpaqueFD,
		"CU_FILE_DRIVER_NOT_INITIALIZED":     device.DirectNotInitialized,
		"CU_FILE_PLATFORM_NOT_SUPPORTED":     device.DirectPlatform,
		"CU_FILE_IO_NOT_SUPPORTED":           device.DirectFileSystem,
		"CU_FILE_DEVICE_NOT_SUPPORTED":       device.DirectDevice,
		"CU_FILE_MEMORY_ALREADY_REGISTERED":  device.DirectRegistered,
		"CU_FILE_INTERNAL_ERROR":             device.DirectInternal,
		"CU_FILE_DRIVER_ALREADY_OPEN":        driverAlreadyOpen,
		"CU_MEMHOSTALLOC_PORTABLE":           memHostAllocPortable,
		"CU_MEMHOSTREGISTER_PORTABLE":        memHostRegisterPortable,
		"CU_STREAM_NON_BLOCKING":             streamNonBlocking,
		"CU_EVENT_BLOCKING_SYNC":             eventBlockingSync,
		"CU_EVENT_DISABLE_TIMING":            eventDisableTiming,
	}
	for what, value := range measured(t, slices.Sorted(maps.Keys(want))) {
		if value != want[what] {
			t.Errorf("%s is %d in C and %d here", what, value, want[what])
		}
	}
}

// What the package binds are the functions of the header, with parameters and results of the
// same sizes and kinds.
func TestPrototypes(t *testing.T) {
	all, functions := prototypes(t), bound()
	types := map[string]bool{}
	for name, p := range all {
		if functions[name] == nil {
			t.Errorf("%s is in the header, and not called", name)
		}
		for _, c := range append(p.parameters, p.result) {
			if c != "void" {
				types[c] = true
			}
		}
	}
	sizes := measured(t, expressionsOf(types, "sizeof(%s)"))
	delete(types, "CUfileError_t")
	signs := measured(t, expressionsOf(numbers(types), "(%s)-1 < 0"))
	agree := func(where, c string, is reflect.Type) {
		if size := sizes[fmt.Sprintf("sizeof(%s)", c)]; size != int(is.Size()) {
			t.Errorf("%s: %s has %d bytes in C, %v has %d", where, c, size, is, is.Size())
		}
		pointer := is.Kind() == reflect.Pointer || is.Kind() == reflect.UnsafePointer
		number, known := signs[fmt.Sprintf("(%s)-1 < 0", c)]
		switch signed := is.Kind() == reflect.Int32 || is.Kind() == reflect.Int64; {
		case is.Kind() == reflect.Uintptr || is.Kind() == reflect.Uint64 || c == "CUresult":
			// addresses and handles as numbers; an enumeration may be either
		case known && pointer, !known && !pointer:
			t.Errorf("%s: %s is a %v", where, c, is)
		case known && signed != (number == 1):
			t.Errorf("%s: %s is a %v, whose sign is another", where, c, is)
		}
	}
	for name, fn := range functions {
		p, ok := all[name]
		if !ok {
			t.Errorf("%s is called, and not in the header", name)
			continue
		}
		if fn.NumIn() != len(p.parameters) {
			t.Errorf("%s has %d parameters, %v", name, len(p.parameters), fn)
			continue
		}
		for i, c := range p.parameters {
			agree(fmt.Sprintf("%s, parameter %d", name, i+1), c, fn.In(i))
		}
		switch {
		case (p.result == "void") != (fn.NumOut() == 0):
			t.Errorf("%s returns %s, %v", name, p.result, fn)
		case p.result != "void":
			agree(name+" returns", p.result, fn.Out(0))
		}
	}
}

func expressionsOf(types map[string]bool, format string) (all []string) {
	for c := range types {
		all = append(all, fmt.Sprintf(format, c))
	}
	return all
}

// numbers are the types that are no pointers.
func numbers(types map[string]bool) map[string]bool {
	left := map[string]bool{}
	for c := range types {
		if !strings.HasSuffix(c, "*") && !slices.Contains([]string{"CUcontext", "CUstream", "CUevent", "CUfileHandle_t"}, c) {
			left[c] = true
		}
	}
	return left
}

// Where NVIDIA's own headers are at hand, their prototypes are those of ours: CUDA_HOME says
// where, or the usual place.
func TestHeaderIsNVIDIAs(t *testing.T) {
	home := os.Getenv("CUDA_HOME")
	if home == "" {
		home = "/usr/local/cuda"
	}
	include := filepath.Join(home, "include")
	for _, header := range []string{"cuda.h", "cufile.h"} {
		if _, err := os.Stat(filepath.Join(include, header)); err != nil {
			t.Skipf("no toolkit: %v", err)
		}
	}
	must(t, hostlib.Compile("-DKV3FS_TOOLKIT", "-I"+include, "-fsyntax-only", "-x", "c", "testdata/abi.h"))
}
