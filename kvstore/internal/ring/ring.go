// Package ring is UCM's "Ds3fs" store: it keeps each block in a file on a 3FS or kv3fs
// mount, read and written through rings.
//
//	<mount>/<first 2 digits>/<32 digits>   a block: its shards one after the other
//	<mount>/.temp/                         blocks that are being written
//	<mount>/.kv3fs-sums/                   checksums, see package sums
//	<mount>/.kv3fs-quarantine/             the latest blocks that were found damaged
//	<mount>/.kv3fs-spare/                  blocks whose own place the file system cannot read
//
// Open files stay registered with the daemon, so that loading a block again costs no
// system call but those that move its bytes. Blocks that UCM writes have no checksums and
// carry no namespace, so Keys does not yield them and Delete does not remove them.
package ring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Options of Open. Fields that are zero have their defaults.
type Options struct {
	// Mount is where the 3FS is mounted, the directory with 3fs-virt in it:
	// storage_backends, of which UCM takes the first.
	Mount string

	Layout    kv.Layout
	Namespace kv.Fingerprint

	// DirectIO is accepted because UCM has io_direct. Through a ring the daemon decides.
	DirectIO bool

	// Streams is how many rings there are for each direction; 2.
	Streams int

	// Entries is how many requests each ring has in flight: ior_entries. Default 64;
	// UCM's is 1.
	Entries int

	// BufferBytes is how much memory is reserved for buffers that are not registered:
	// buffer_size. Default 64 MiB.
	BufferBytes int64

	// OpenFiles is how many files that no load is using stay open and registered; 1024,
	// and at most a quarter of what the process may open. Blocks that are deleted
	// elsewhere keep their space until they are closed, after a minute or two.
	OpenFiles int

	// WaitingQueueDepth is how many reads and writes wait for a ring; 1024.
	WaitingQueueDepth int

	// RunningQueueDepth is how many shards the store accepts before Load and Save
	// wait; 32768.
	RunningQueueDepth int

	// Timeout bounds every wait: timeout_ms. Default 30 s.
	Timeout time.Duration

	// NUMANode is where the buffers' memory is: numa_id. Default anywhere.
	NUMANode *int

	// Checksums: see kv.Checksums. Default auto.
	Checksums kv.Checksums
}

// Store is a kv.Store and a kv.Registrar.
type Store struct{ *blockfiles.Store }

const (
	name      = "Ds3fs"
	tempDir   = ".temp"
	dirDigits = 2

	defaultOpenFiles = 1024
)

// Open opens the store.
func Open(o Options) (*Store, error) {
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	mount, err := findMount(o.Mount)
	if err != nil {
		return nil, err
	}
	openFiles, err := limitOpenFiles(cmp.Or(o.OpenFiles, defaultOpenFiles))
	if err != nil {
		return nil, err
	}
	engine, err := ringio.New(ringio.Options{
		Mount: mount, Streams: o.Streams, Entries: o.Entries, BufferBytes: o.BufferBytes,
		WaitingQueueDepth: o.WaitingQueueDepth, Timeout: o.Timeout, NUMANode: o.NUMANode,
	})
	if err != nil {
		return nil, fmt.Errorf("kvstore: rings on %s: %w", mount, err)
	}
	s, err := blockfiles.Open(blockfiles.Options{
		Name:              name,
		Layout:            o.Layout,
		Namespace:         o.Namespace,
		Checksums:         o.Checksums,
		Roots:             []string{mount},
		Format:            blockfiles.UCM{BlockBytes: o.Layout.BlockBytes, DirDigits: dirDigits, TempDir: tempDir},
		TempDir:           tempDir,
		Engine:            engine,
		OpenFiles:         openFiles,
		RunningQueueDepth: o.RunningQueueDepth,
		Timeout:           o.Timeout,
	})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return &Store{s}, nil
}

// findMount returns an error unless dir is the mount point itself, where UCM looks for
// blocks.
func findMount(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("kvstore: storage_backends is empty; name the directory where the 3FS is mounted")
	}
	mount, err := usrbio.FindMount(context.Background(), dir)
	if errors.Is(err, usrbio.ErrNotMounted) {
		return "", fmt.Errorf("kvstore: storage_backends: %w: mount a 3FS or kv3fs there, or use the Posix store", err)
	}
	if err != nil {
		return "", fmt.Errorf("kvstore: storage_backends: %w", err)
	}
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return "", fmt.Errorf("kvstore: storage_backends: %w", err)
	}
	if real != mount {
		return "", fmt.Errorf("kvstore: storage_backends is %s, below the mount point %s: name that, which is where UCM has its blocks", dir, mount)
	}
	return mount, nil
}

// limitOpenFiles leaves most of the descriptors to the rest of the process.
func limitOpenFiles(wanted int) (int, error) {
	if wanted < 0 {
		return 0, fmt.Errorf("kvstore: %d open files; choose 0 or more", wanted)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("kvstore: read the limit of open files: %w", err)
	}
	return int(min(uint64(wanted), limit.Cur/4)), nil
}
