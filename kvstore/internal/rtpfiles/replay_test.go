package rtpfiles

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// engine does with files what RTP-LLM and KVCM's SDK do: see testdata/replay.c.
type engine struct {
	binary, mount string
}

func newEngine(t *testing.T, mount string) engine {
	t.Helper()
	build := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", "../../../clients/c", "BUILD="+build, "CFLAGS=-O0", build+"/libhf3fs_api_shared.a").CombinedOutput(); err != nil {
		t.Fatalf("make the C library: %v\n%s", err, out)
	}
	binary := filepath.Join(build, "replay")
	cc := exec.CommandContext(t.Context(), "cc", "-std=c11", "-D_GNU_SOURCE", "-O0", "-Wall", "-Wextra", "-Werror",
		"-I../../../clients/c/include", "testdata/replay.c", build+"/libhf3fs_api_shared.a", "-pthread", "-lrt", "-o", binary)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return engine{binary, mount}
}

func (e engine) run(t *testing.T, input []byte, operation, path string, offset, length int64) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.binary, operation, e.mount, path, strconv.FormatInt(offset, 10), strconv.FormatInt(length, 10))
	cmd.Stdin = bytes.NewReader(input)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", operation, path, err, log.Bytes())
	}
	return out.Bytes(), err
}

func (e engine) write(t *testing.T, path string, offset int64, raw []byte) {
	t.Helper()
	if _, err := e.run(t, raw, "write", path, offset, int64(len(raw))); err != nil {
		t.Fatal(err)
	}
}

// reads checks that the engine reads these bytes.
func (e engine) reads(t *testing.T, path string, offset int64, want []byte) {
	t.Helper()
	got, err := e.run(t, nil, "read", path, offset, int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the engine reads other bytes from %s at %d", path, offset)
	}
}

// TestEnginesOwnFiles writes and reads on a real mount as the engines do, and has the stores
// read and write the same files, both ways, byte for byte.
func TestEnginesOwnFiles(t *testing.T) {
	d := daemontest.Serve(t)
	e := newEngine(t, d.Mount)
	l := kv.Layout{BlockBytes: 1<<20 + 8192, ShardBytes: (1<<20 + 8192) / 2} // pieces of 1 MiB end within blocks
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(d.Mount, name)
			if err := os.Mkdir(root, 0o777); err != nil {
				t.Fatal(err)
			}
			s := openTest(t, name, Options{Root: root, Layout: l})
			if !s.Rings() {
				t.Error("the store does not use rings on a mount")
			}
			at := func(first, n int) string { return filepath.Join(root, path(first, n)) }

			// The engine writes a file of three blocks, one of two, and one of one.
			switch name {
			case "RtpLlm": // all blocks of an item at once
				e.write(t, at(0, 3), 0, content(l, 0, 3))
				e.write(t, at(3, 2), 0, content(l, 3, 2))
			case "Kvcm": // each block at its number times its size
				for i := range 5 {
					first, n := 0, 3
					if i >= 3 {
						first, n = 3, 2
					}
					e.write(t, at(first, n), int64(i-first)*l.BlockBytes, content(l, i, 1))
				}
			}
			e.write(t, at(5, 1), 0, content(l, 5, 1))
			count(t, s, 0, 7, 6)
			hits(t, s, 0, 6, true)
			hits(t, s, 6, 1, false)

			// The store writes, and the engine reads.
			save(t, s, 6, 2)
			e.reads(t, at(6, 1), 0, content(l, 6, 1))
			e.reads(t, at(7, 1), 0, content(l, 7, 1))
			if raw, err := os.ReadFile(at(7, 1)); err != nil || !bytes.Equal(raw, content(l, 7, 1)) {
				t.Errorf("the file has something else than the block: %v", err)
			}
			count(t, s, 0, 9, 8)

			// The engine finds a file that the store has not finished too short, or not at all.
			var status *exec.ExitError
			if _, err := e.run(t, nil, "read", at(8, 1), 0, l.BlockBytes); !errors.As(err, &status) {
				t.Errorf("the engine reads a block that nobody has written: %v", err)
			}
		})
	}
}
