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

// TestEnginesOwnFiles writes and reads on a real mount as the engines do with 16 blocks in a
// file, and has the stores read and write the same files, both ways, byte for byte.
func TestEnginesOwnFiles(t *testing.T) {
	d := daemontest.Serve(t)
	e := newEngine(t, d.Mount)
	l := kv.Layout{BlockBytes: 1<<17 + 8192, ShardBytes: (1<<17 + 8192) / 2} // pieces of 1 MiB end within blocks
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
			writes := func(first, n int) {
				if name == "RtpLlm" { // all blocks of an item at once
					e.write(t, at(first, n), 0, content(l, first, n))
					return
				}
				for i := range n { // each block at its number times its size
					e.write(t, at(first, n), int64(i)*l.BlockBytes, content(l, first+i, 1))
				}
			}
			reads := func(first, n int) {
				if name == "RtpLlm" {
					e.reads(t, at(first, n), 0, content(l, first, n))
				}
				for _, i := range []int{0, n - 1} {
					e.reads(t, at(first, n), int64(i)*l.BlockBytes, content(l, first+i, 1))
				}
			}

			// The engine writes a prompt, and the store reads it.
			writes(0, 16)
			writes(16, 1)
			count(t, s, 0, 18, 17)
			hits(t, s, 0, 17, true)
			hits(t, s, 17, 1, false)

			// The store writes the blocks that follow, and the engine finds and reads them.
			save(t, s, 17, 3)
			flush(t, s)
			switch name {
			case "RtpLlm":
				reads(16, 4)
				if n := match(t, root, 20, 16); n != 20 {
					t.Errorf("RTP-LLM finds %d of 20 blocks", n)
				}
				if n := match(t, root, 17, 16); n != 17 {
					t.Errorf("RTP-LLM finds %d of 17 blocks", n)
				}
			case "Kvcm":
				reads(17, 3)
			}

			// The store writes a prompt of 40 blocks, and the engine reads it.
			const base = 100
			count(t, s, base, 40, 0)
			save(t, s, base, 40)
			reads(base, 16)
			reads(base+16, 16)
			reads(base+32, 8)

			// The engine goes on with it: it writes what is in its last item again, and KVCM's
			// manager has only what is new written.
			if name == "RtpLlm" {
				writes(base+32, 13)
			} else {
				writes(base+40, 5)
			}
			other := openTest(t, name, Options{Root: root, Layout: l})
			count(t, other, base, 46, 45)
			hits(t, other, base, 45, true)

			// The engine finds a file that the store has not finished too short, or not at all.
			var status *exec.ExitError
			if _, err := e.run(t, nil, "read", at(8, 1), 0, l.BlockBytes); !errors.As(err, &status) {
				t.Errorf("the engine reads a block that nobody has written: %v", err)
			}
		})
	}
}
