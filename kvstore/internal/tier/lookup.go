package tier

import (
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Lookup looks in the near store, and in the far one for the rest.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	return s.look(ctx, keys, found, func(ctx context.Context) (int, error) {
		rest, at := absent(keys, found)
		if len(rest) > 0 {
			there := make([]bool, len(rest))
			err := s.ask(ctx, func(ctx context.Context) error { return s.far.Lookup(ctx, rest, there) })
			if err != nil {
				return 0, err
			}
			for n, i := range at {
				found[i] = there[n]
			}
		}
		n := 0
		for _, is := range found {
			if is {
				n++
			}
		}
		return n, nil
	})
}

// LookupPrefix looks in the far store only for runs of keys that are not near, and for none
// behind the first key that neither has.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (n int, err error) {
	found := make([]bool, len(keys))
	err = s.look(ctx, keys, found, func(ctx context.Context) (int, error) {
		for n < len(keys) {
			if found[n] {
				n++
				continue
			}
			end := n
			for end < len(keys) && !found[end] {
				end++
			}
			there := 0
			err := s.ask(ctx, func(ctx context.Context) (err error) {
				there, err = s.far.LookupPrefix(kv.WithPrompt(ctx, kv.Prompt(ctx, keys)), keys[n:end])
				return err
			})
			if err != nil {
				return 0, err
			}
			if n += there; n < end {
				break
			}
		}
		return n, nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// look looks up keys in the near store, and then calls rest, which returns how many are found.
func (s *Store) look(ctx context.Context, keys []kv.Key, found []bool, rest func(context.Context) (int, error)) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	inner, cancel := s.group.With(ctx)
	defer cancel()
	if err := s.near.Lookup(inner, keys, found); err != nil {
		if inner.Err() != nil {
			return s.group.Explain(inner.Err())
		}
		clear(found) // the far store may have them
	}
	n, err := rest(inner)
	if err != nil {
		return s.group.Explain(err)
	}
	s.count.LookedUp.Add(int64(len(keys)))
	s.count.Found.Add(int64(n))
	return nil
}

// ask asks the far store. If it does not answer, or fails, what is asked for is not found:
// only an end of the caller's context is an error.
func (s *Store) ask(ctx context.Context, call func(context.Context) error) error {
	if s.health.err() != nil {
		return nil
	}
	err := call(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, kv.ErrClosed):
		return err
	}
	s.health.lookedUp(err)
	return nil
}

// absent returns the keys that are not found, and where they are.
func absent(keys []kv.Key, found []bool) (rest []kv.Key, at []int) {
	for i, is := range found {
		if !is {
			rest, at = append(rest, keys[i]), append(at, i)
		}
	}
	return rest, at
}
