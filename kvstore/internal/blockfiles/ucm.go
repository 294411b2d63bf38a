package blockfiles

import (
	"encoding/binary"
	"path/filepath"
	"strings"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// UCM is the Format of UCM's two stores: a file has the block and nothing else, and its
// name is the key.
type UCM struct {
	BlockBytes int64

	// DirDigits is how many hexadecimal digits of the key name the directory of a block;
	// with 0 it is called data.
	DirDigits int

	// TempDir is where UCM writes blocks, below the same root, under their own names.
	// Without it, it writes them where they are to be, under their names with ".tmp".
	TempDir string
}

var _ Format = UCM{}

// Place returns the place of a block: every key has one.
func (u UCM) Place(key kv.Key) (Place, error) {
	id := key.String()
	return Place{Dir: u.dir(id), Name: id, Bytes: u.BlockBytes}, nil
}

func (u UCM) dir(id string) string {
	if u.DirDigits == 0 {
		return "data"
	}
	return id[:u.DirDigits]
}

// Key reads a key.
func (u UCM) Key(name string) (kv.Key, bool) {
	key, err := keys.ParseKey(name)
	return key, err == nil && key.String() == name
}

// HasBlocks reports whether a directory has the name of those of blocks.
func (u UCM) HasBlocks(dir string) bool {
	if u.DirDigits == 0 {
		return dir == "data"
	}
	return len(dir) == u.DirDigits && strings.Trim(dir, "0123456789abcdef") == ""
}

// Root returns the last 8 bytes of the key, as a big-endian number, modulo the number of
// roots. UCM distributes blocks differently, by a hash of its C++ library.
func (u UCM) Root(key kv.Key, roots int) int {
	return int(binary.BigEndian.Uint64(key[8:]) % uint64(roots))
}

// Head and CheckHead have nothing to do: there are no heads.
func (u UCM) Head(kv.Key) []byte             { return nil }
func (u UCM) CheckHead(kv.Key, []byte) error { return nil }

// Unfinished returns where UCM has a block while it writes it: a shard that comes late makes
// that file again.
func (u UCM) Unfinished(key kv.Key) string {
	id := key.String()
	if u.TempDir != "" {
		return filepath.Join(u.TempDir, id)
	}
	return filepath.Join(u.dir(id), id+".tmp")
}
