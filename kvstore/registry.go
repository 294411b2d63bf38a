package kvstore

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/internal/host"
)

// A Registry has stores of a program's own for the ends of chains, beside those of this
// package: after Register("Shelf", open) there are the chains Shelf and Cache|Shelf. The
// zero value is ready. Any number of goroutines may use it.
//
// There is no registry of the process, so that two libraries in one program may give a
// name to different stores. [Open], [Chains] and [ReadConfig] are those of a Registry in
// which nothing is registered.
type Registry struct {
	mu   sync.RWMutex
	open map[string]BackendOpener
}

// A BackendOpener opens the backend of a store that is registered, for one chain. Its
// Config is complete: Timeout, Logger and ShardBytes are never zero. What the store itself
// needs to know the function has from its program.
type BackendOpener func(c Config) (Backend, error)

// RegisteredOptions configure what the chain adds to a registered store.
type RegisteredOptions struct {
	// UnfinishedBytes bounds the memory for blocks that are being saved, from their first
	// shard until the backend has them. A Save beyond it waits until others are finished, and
	// fails with [ErrTimeout] where none is for Timeout, as when it has a shard each of more
	// blocks than there is room for. Default 1 GiB, and at least one block.
	UnfinishedBytes int64
}

// storeNames are what names of stores may be.
var storeNames = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)

// Register names a store. It is an error if the name is one already, here or in this
// package, or cannot be in the name of a chain.
func (r *Registry) Register(name string, open BackendOpener) error {
	switch {
	case !storeNames.MatchString(name):
		return fmt.Errorf("kvstore: register store %.60q: use a letter, then up to 39 letters, digits, _ and -", name)
	case open == nil:
		return fmt.Errorf("kvstore: register store %s: there is no function to open it", name)
	case name == cacheName || slices.Contains(backs, name):
		return fmt.Errorf("kvstore: register store %s: this package has a store of that name; choose another", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[name] != nil {
		return fmt.Errorf("kvstore: register store %s: it is registered already; choose another name", name)
	}
	if r.open == nil {
		r.open = map[string]BackendOpener{}
	}
	r.open[name] = open
	return nil
}

// names returns the names of the registered stores.
func (r *Registry) names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.open))
}

func (r *Registry) opener(name string) BackendOpener {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.open[name]
}

// Chains is [Chains] with those of registered stores.
func (r *Registry) Chains() []string {
	var all []string
	for _, back := range r.backs() {
		all = append(all, cacheName+"|"+back, back)
	}
	for _, back := range r.backs() {
		if back != segmentName && back != emptyName {
			all = append(all, cacheName+"|"+segmentName+"|"+back, segmentName+"|"+back)
		}
	}
	return all
}

// backs are the stores that end a chain.
func (r *Registry) backs() []string { return slices.Concat(backs, r.names()) }

// Open is [Open], also for chains with registered stores.
func (r *Registry) Open(chain string, c Config) (*Store, error) {
	return r.openWith(chain, c, host.Local().MemoryFreeBytes)
}

// ReadConfig is [ReadConfig], also for chains with registered stores.
func (r *Registry) ReadConfig(src []byte) (c UCMConfig, notes []string, err error) {
	if c, notes, err = r.readConfig(src); err != nil {
		return UCMConfig{}, nil, fmt.Errorf("kvstore: configuration: %w", err)
	}
	return c, notes, nil
}
