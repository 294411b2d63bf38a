package blockio

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// What is copied is told piece by piece, each up to a multiple of the pieces' size in the file, and the bytes are those of
// a call that does not divide.
func TestPieces(t *testing.T) {
	const pieceBytes, size = 128 << 10, 3 << 20 / 4
	content := randomBytes(size)
	inMemory, err := os.MkdirTemp(shm.Dir, "kv3fs-blockio-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(inMemory) })
	for _, dir := range []string{inMemory, t.TempDir()} {
		f := open(t, filepath.Join(dir, "f"))
		m := Mover{Mode: Auto, Kind: KindOf(dir)}
		for _, off := range []int64{0, 4096, pieceBytes - 1} {
			var told []int64
			pieces := Pieces{Bytes: pieceBytes, Moved: func(n int64) { told = append(told, n) }}
			check := func(what string, n int64, err error, divided bool) {
				t.Helper()
				if n != size || err != nil {
					t.Fatalf("%s at %d in %s: %d, %v", what, off, dir, n, err)
				}
				for i, at := range told {
					if last := i == len(told)-1; (off+at)%pieceBytes != 0 && !last || at > n || last && at != n {
						t.Errorf("%s at %d in %s: told %v of %d bytes", what, off, dir, told, n)
					}
				}
				if want := (off+size-1)/pieceBytes - off/pieceBytes + 1; divided && int64(len(told)) < want {
					t.Errorf("%s at %d in %s: told %v, want %d pieces", what, off, dir, told, want)
				}
				told = nil
			}
			n, _, err := m.WritePieces(f, shm.OwnWindow(content), 0, off, pieces)
			check("write", n, err, m.Kind == Memory)
			mem := memory(t, size)
			n, waited, err := m.ReadPieces(f, shm.OwnWindow(mem), 0, off, pieces)
			check("read", n, err, m.Kind == Memory || m.Kind == Disk && !waited)
			if !bytes.Equal(mem, content) {
				t.Errorf("at %d in %s: other bytes were read", off, dir)
			}
		}
		// Up to the end of the file, and no further.
		end := int64(0)
		st := unix.Stat_t{}
		if err := unix.Fstat(f.buffered, &st); err != nil {
			t.Fatal(err)
		}
		mem := memory(t, size)
		n, _, err := m.ReadPieces(f, shm.OwnWindow(mem), 0, pieceBytes, Pieces{pieceBytes, func(n int64) { end = n }})
		if want := st.Size - pieceBytes; n != want || err != nil || end > want || m.Kind == Memory && end != want {
			t.Errorf("at the end in %s: %d bytes, %v, told %d, want %d", dir, n, err, end, want)
		}
	}
}
