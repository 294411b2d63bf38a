package cache_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A call that hangs in next until it is cancelled ends with Close, whatever call it is.
func TestCloseEndsWhatHangs(t *testing.T) {
	moves := func(t *kv.Task, err error) error {
		if err == nil {
			err = t.Wait(context.Background())
		}
		return err
	}
	for name, c := range map[string]struct {
		method fault.Method
		call   func(*cache.Store) error
	}{
		"Lookup": {fault.Lookup, func(s *cache.Store) error {
			return s.Lookup(t.Context(), keys(0, 2), make([]bool, 2))
		}},
		"Lookup of the rest": {fault.Lookup, func(s *cache.Store) error {
			return s.Lookup(t.Context(), keys(99, 2), make([]bool, 2))
		}},
		"LookupPrefix": {fault.LookupPrefix, func(s *cache.Store) error {
			_, err := s.LookupPrefix(t.Context(), keys(99, 2))
			return err
		}},
		"Flush": {fault.Flush, func(s *cache.Store) error { return s.Flush(t.Context()) }},
		"Load":  {fault.Load, func(s *cache.Store) error { return moves(s.Load(t.Context(), blocks(small, key(0)))) }},
		"a Save that has no space": {fault.Save, func(s *cache.Store) error {
			for n := range 3 { // there is space for no further unfinished block
				if err := moves(s.Save(t.Context(), filled(blocks(small, key(n)))[:1])); err != nil {
					return err
				}
			}
			return moves(s.Save(t.Context(), filled(blocks(small, key(3)))))
		}},
	} {
		next := fault.New(newShelf(small, newThings()))
		s := cached(t, next, 4, cache.Options{})
		save(t, s, key(99))
		flush(t, s)
		next.Set(fault.Fault{Method: c.method, Hold: make(chan struct{})})
		called, closed := make(chan error, 1), make(chan struct{})
		go func() { called <- c.call(s) }()
		eventually(t, name+" hangs", func() bool { return next.Hits()[0] > 0 })
		go func() {
			defer close(closed)
			s.Close()
		}()
		within(t, "Close returns while "+name+" hangs", closed)
		if err := <-called; !errors.Is(err, kv.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
