package objects

import (
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Keys implements kv.Store. Names that this package does not give are left out, and so are
// those that the backend lists twice.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		inner, leave, err := s.enter(ctx)
		if err != nil {
			yield(kv.Key{}, err)
			return
		}
		defer leave()
		l := &listing{store: s, ctx: inner}
		defer l.end()
		seen := map[kv.Key]bool{}
		for {
			names, more, err := l.some()
			if err != nil {
				yield(kv.Key{}, s.group.Explain(err))
				return
			}
			for _, name := range names {
				key, ok := s.keyOf(name)
				if !ok || seen[key] {
					continue
				}
				seen[key] = true
				if !yield(key, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// keyOf returns the key of an object of this namespace.
func (s *Store) keyOf(name string) (key kv.Key, ok bool) {
	hex, ok := strings.CutPrefix(name, s.prefix)
	if !ok {
		return key, false
	}
	key, err := keys.ParseKey(hex)
	return key, err == nil && key.String() == hex
}

// listing is a List of the backend that is taken name by name.
type listing struct {
	store *Store
	ctx   context.Context // of the call of Keys that it is in
	next  func() (string, error, bool)
	stop  func()

	mu    sync.Mutex
	inUse bool // by a call of the backend, which may be overdue
	ended bool
}

// some returns the next names, and whether there are more.
func (l *listing) some() ([]string, bool, error) {
	type page struct {
		names []string
		more  bool
	}
	got := make(chan page, 1)
	err := l.store.call(l.ctx, "List", func(context.Context) error {
		l.use()
		defer l.leave()
		if l.next == nil {
			l.next, l.stop = iter.Pull2(l.store.backend.List(l.ctx, l.store.prefix))
		}
		p := page{more: true}
		for len(p.names) < mostNames {
			name, err, more := l.next()
			if err != nil {
				return err
			}
			if !more {
				p.more = false
				break
			}
			p.names = append(p.names, name)
		}
		got <- p
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	p := <-got
	return p.names, p.more, nil
}

func (l *listing) use() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse = true
}

func (l *listing) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse = false
	if l.ended {
		l.stopNow()
	}
}

// end ends the sequence early. If a call of the backend has not returned, that does it.
func (l *listing) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if !l.inUse {
		l.stopNow()
	}
}

func (l *listing) stopNow() {
	if l.stop == nil {
		return
	}
	_ = guard(func() error { // nobody wants more of it
		l.stop()
		return nil
	})
}
