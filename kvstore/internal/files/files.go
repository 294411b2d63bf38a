// Package files is UCM's "Posix" store: it keeps each block in a file, in directories that
// UCM's own store can use at the same time.
//
//	<dir>/<first 3 digits>/<32 digits>   a block: its shards one after the other
//	<dir>/.kv3fs-temp/                   blocks that are being written
//	<dir>/.kv3fs-sums/                   checksums, see package sums
//	<dir>/.kv3fs-quarantine/             the latest blocks that were found damaged
//	<dir>/.kv3fs-spare/                  blocks whose own place the file system cannot read
//
// UCM ignores the last four. The blocks that it writes have no checksums and are loaded
// without, unless the store is to require them; the sticky bit tells the store's own
// blocks from them, see sums.Mark. They carry no namespace either, so Keys
// does not yield them and Delete does not remove them.
//
// Nothing is synced, as in UCM: after a power cut a block may be cut short, which its
// size tells, damaged, which its checksums tell, or missing.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// Options of Open. Fields that are zero have their defaults.
type Options struct {
	// Dirs are where the blocks are: storage_backends. Those that do not exist are
	// made, but not their parent directories. The last 8 bytes of a key, as a big-endian
	// number modulo the number of directories, choose the one that its block is written
	// to. Blocks are found in all of them.
	Dirs []string

	Layout    kv.Layout
	Namespace kv.Fingerprint

	// DirectIO bypasses the page cache: io_direct. Default false.
	DirectIO bool

	// Streams is how many reads and writes are under way at once:
	// posix_data_trans_concurrency, stream_number. Default 128.
	Streams int

	// WaitingQueueDepth is how many reads and writes wait for a stream; 1024.
	WaitingQueueDepth int

	// RunningQueueDepth is how many shards the store accepts before Load and Save
	// wait; 32768.
	RunningQueueDepth int

	// Timeout bounds every wait: timeout_ms. Default 30 s.
	Timeout time.Duration

	// DirShardDigits is how many hexadecimal digits of the key name the directory of a
	// block: data_dir_shard_bytes, 0 to 5; with 0 it is called data. Default 3. It must be
	// UCM's number for the two to find each other's blocks.
	DirShardDigits *int

	// Checksums: see kv.Checksums. Default auto.
	Checksums kv.Checksums
}

// Store is a kv.Store.
type Store struct{ *blockfiles.Store }

const (
	name = "Posix"

	defaultStreams = 128 // as in UCM

	defaultDigits = 3
	mostDigits    = 5
)

// Open opens the store.
func Open(o Options) (*Store, error) {
	digits := defaultDigits
	if o.DirShardDigits != nil {
		digits = *o.DirShardDigits
	}
	if digits < 0 || digits > mostDigits {
		return nil, fmt.Errorf("kvstore: data_dir_shard_bytes is %d; choose 0 to %d", digits, mostDigits)
	}
	if len(o.Dirs) == 0 {
		return nil, errors.New("kvstore: storage_backends is empty; name a directory")
	}
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	for i, dir := range o.Dirs {
		for _, other := range o.Dirs[:i] {
			if filepath.Clean(dir) == filepath.Clean(other) {
				return nil, fmt.Errorf("kvstore: storage_backends names %s twice", dir)
			}
		}
		if err := claimDir(dir); err != nil {
			return nil, err
		}
	}
	if o.Streams <= 0 {
		o.Streams = defaultStreams
	}
	engine := posix.New(posix.Options{
		Streams: o.Streams, WaitingQueueDepth: o.WaitingQueueDepth, Timeout: o.Timeout, DirectIO: o.DirectIO,
	})
	s, err := blockfiles.Open(blockfiles.Options{
		Name:              name,
		Layout:            o.Layout,
		Namespace:         o.Namespace,
		Checksums:         o.Checksums,
		Roots:             o.Dirs,
		Format:            blockfiles.UCM{BlockBytes: o.Layout.BlockBytes, DirDigits: digits},
		Engine:            engine,
		OpenFiles:         keepOpen,
		Touch:             true,
		RunningQueueDepth: o.RunningQueueDepth,
		Timeout:           o.Timeout,
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &Store{s}, nil
}

// keepOpen is how many files stay open for the next load of the same block, layer by
// layer. UCM's cleaner cannot free the space of files that are open.
const keepOpen = 64

// ours matches what this store, UCM's store or a file system creates in a directory of
// blocks.
var ours = regexp.MustCompile(`^([0-9a-f]{1,5}|data|\.kv3fs-.*|lost\+found)$`)

// claimDir makes a directory if there is none, or returns why it is not to be used.
func claimDir(dir string) error {
	err := os.Mkdir(dir, 0o775)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("kvstore: make the directory of blocks %s: there is no %s, or nothing can be made in it; make it, or mount what belongs there", dir, filepath.Dir(filepath.Clean(dir)))
	case errors.Is(err, fs.ErrExist):
	default:
		return fmt.Errorf("kvstore: make the directory of blocks: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("kvstore: %s is to hold blocks and must be a directory that can be read: %w", dir, err)
	}
	var strange []string
	for _, e := range entries {
		if ours.MatchString(e.Name()) && e.IsDir() {
			if e.Name() != "lost+found" {
				return nil
			}
			continue
		}
		strange = append(strange, e.Name())
	}
	if len(strange) > 0 {
		return fmt.Errorf("kvstore: %s has %s in it and no blocks: make a directory of its own for them, such as %s",
			dir, strings.Join(strange[:min(3, len(strange))], ", "), filepath.Join(dir, "kv"))
	}
	return nil
}
