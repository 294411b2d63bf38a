package enginebench

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore"
)

// LossError says that a store did not load what it had found, or did not save. The times of
// the engine are right; what they say of the store is not what a store should do.
type LossError struct {
	Blocks int            `json:"blocks"`      // found, but not loaded
	Saves  int            `json:"save_shards"` // not saved
	Causes map[string]int `json:"causes"`      // of failed shards
	First  string         `json:"first"`       // error
}

func (e *LossError) Error() string {
	var what, causes []string
	if e.Blocks > 0 {
		what = append(what, fmt.Sprintf("the store had found %d blocks and did not load them", e.Blocks))
	}
	if e.Saves > 0 {
		what = append(what, fmt.Sprintf("it did not save %d shards", e.Saves))
	}
	for _, cause := range slices.Sorted(maps.Keys(e.Causes)) {
		causes = append(causes, fmt.Sprintf("%s: %d shards", cause, e.Causes[cause]))
	}
	return fmt.Sprintf("bench: %s (%s); the first error: %s", strings.Join(what, ", "), strings.Join(causes, ", "), e.First)
}

// losses counts what requests lose. Any goroutine may call its methods.
type losses struct {
	mu sync.Mutex
	of LossError
}

func (l *losses) loads(blocks int, failed []error) { l.add(blocks, 0, failed) }
func (l *losses) saves(failed []error)             { l.add(0, len(failed), failed) }

func (l *losses) add(blocks, saves int, failed []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of.Blocks += blocks
	l.of.Saves += saves
	for _, err := range failed {
		if l.of.Causes == nil {
			l.of.Causes, l.of.First = map[string]int{}, err.Error()
		}
		l.of.Causes[causeOf(err)]++
	}
}

// include adds what another process has lost, nil if nothing.
func (l *losses) include(other *LossError) {
	if other == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of.Blocks += other.Blocks
	l.of.Saves += other.Saves
	if l.of.Causes == nil {
		l.of.Causes, l.of.First = map[string]int{}, other.First
	}
	for cause, n := range other.Causes {
		l.of.Causes[cause] += n
	}
}

// err returns what was lost, or nil. No request may be under way.
func (l *losses) err() *LossError {
	if l.of.Blocks == 0 && l.of.Saves == 0 {
		return nil
	}
	return &l.of
}

// causeOf returns the kind of an error of a store. A damaged block is a missing one, too.
func causeOf(err error) string {
	for _, kind := range []struct {
		err  error
		name string
	}{
		{kvstore.ErrCorrupt, "damaged"}, {kvstore.ErrMiss, "gone"}, {kvstore.ErrFull, "no space"},
		{kvstore.ErrTimeout, "no answer in time"}, {kvstore.ErrConflict, "another content"}, {kvstore.ErrClosed, "the store is closed"},
	} {
		if errors.Is(err, kind.err) {
			return kind.name
		}
	}
	return "failed"
}
