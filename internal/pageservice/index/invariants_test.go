//go:build invariants

package index

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Each way in which a page could get two owners, or none, is noticed.
func TestBrokenInvariantsPanic(t *testing.T) {
	for want, breakIt := range map[string]func(*space, *rank){
		"page 0 has owner 0x1, want nobody": func(s *space, r *rank) {
			r.free = append(r.free, 0) // a key has it
			r.take(hold{state: writable})
		},
		"page 1 has owner 0x80000000, want nobody": func(s *space, r *rank) { r.release(1) },
		"page 0 has owner 0x1, want a hold":        func(s *space, r *rank) { r.drop(0) },
		"0 free, 1 reserved, 2 keyed and 0 quarantined pages, of 2": func(s *space, r *rank) {
			r.keyed++
			s.assert()
		},
		"page 0 is in an order of eviction, but belongs to no key": func(s *space, r *rank) {
			r.owner[0] = 0
			r.free = append(r.free, 0)
			r.keyed--
			for range checkEvery {
				s.assert()
			}
		},
	} {
		x, err := open(t.TempDir(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 2}); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			grants, err := x.Reserve(ctx, modelSpace, 0, []string{key}, true)
			if err != nil {
				t.Fatal(err)
			}
			if key == "a" { // b stays reserved
				_, err = x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: key, Page: grants[0].Page}}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s := x.find(modelSpace)
		if got := panicOf(func() { breakIt(s, s.ranks[0]) }); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func panicOf(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return ""
}
