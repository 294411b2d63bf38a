package blockfiles

import "github.com/kv3fs/kv3fs/kvstore/internal/kv"

// A Format says where the files of a store's blocks are, and what else than the block is
// in them: another program reads and writes the same files. It makes no calls to the
// file system. Any number of goroutines may call its methods at once.
//
// The store does the rest for every Format: temporary files of its own, checksum logs,
// the quarantine of damaged blocks, spare places, and the bounds on open files.
type Format interface {
	// Place returns where the block of a key is. It is the same for each call. No two
	// keys have the same one. An error says why the key can have no block: a Save and a
	// Delete with it are refused, and everything else finds no block.
	Place(key kv.Key) (Place, error)

	// Key is the inverse of Place: it returns the key of the block whose file has this
	// name, and whether there is one. The store calls Place to see whether the directory
	// is the right one.
	Key(name string) (kv.Key, bool)

	// HasBlocks reports whether a directory, given relative to its root, may have blocks
	// in it or below it. Keys reads those that may. It is not called for the root itself,
	// which Keys reads in any case, nor for what is below a directory that has none.
	HasBlocks(dir string) bool

	// Root returns in which of so many roots a block is to be written. The store finds a
	// block in whichever root it is.
	Root(key kv.Key, roots int) int

	// Head returns the bytes that a file of this block has before the block, at most
	// Place.Offset of them. The store writes them when it creates the file. It is not
	// called where that is 0.
	Head(key kv.Key) []byte

	// CheckHead returns an error that says what is wrong if a file whose first
	// Place.Offset bytes are head is not of this block. A file of another program's is then
	// none of the store's, and one that the store has recorded is damaged. It is not called
	// where Place.Offset is 0.
	CheckHead(key kv.Key, head []byte) error

	// Unfinished returns the path, relative to the root, of a file whose presence says
	// that another program is still writing the block, though the block has its name
	// already; "" where no file says that. It concerns blocks without a checksum.
	Unfinished(key kv.Key) string
}

// Generations is a Format of a program whose releases, or settings, differ in where a block is.
// The store writes to the place that the Format says, and finds and deletes a block in all.
type Generations interface {
	Format

	// Places returns the places where the block of a key may be. The first is that of Place,
	// whose rules hold for each: none is one of another key's.
	Places(key kv.Key) ([]Place, error)
}

// Place is where a block is, below one of the roots.
type Place struct {
	// Dir is relative to the root, "." for the root itself, and Name is the file's name in
	// it. The store makes the directory when it writes the first block there.
	Dir, Name string

	// Offset is where the block begins in the file, and Bytes is how long the whole file
	// is. A file of another length is not the block.
	Offset, Bytes int64

	// Side is the name of a second file in the same directory, "" where there is none. Its
	// content is that of Head. It gets its name after the block and is removed before it:
	// a block without it is not looked up.
	Side string
}
