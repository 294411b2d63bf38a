package indextest

import (
	"context"
	"errors"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var refusing = map[string]func(*world){
	"an unknown rank is an error, and stays unknown": func(w *world) {
		w.initialize(2, 0)
		_, reserveErr := w.Index().Reserve(w.Context(), space, 1, []string{"a"}, true)
		_, confirmErr := w.Index().Confirm(w.Context(), space, 1, nil, []int64{0})
		_, locateErr := w.Index().Locate(w.Context(), space, 1, nil)
		_, elsewhere := w.Index().Locate(w.Context(), pageservice.Space{Set: "elsewhere"}, 0, nil)
		for _, err := range []error{reserveErr, confirmErr, locateErr, elsewhere} {
			if !errors.Is(err, pageservice.ErrUnknownRank) {
				w.Fatal(err)
			}
		}
		if s := w.stat(); len(s) != 1 || len(s[0].Ranks) != 1 {
			w.Fatalf("%+v", s)
		}
	},

	"arguments out of range are refused, and nothing changes": func(w *world) {
		w.initialize(2, 0)
		for _, o := range []pageservice.RankOptions{{}, {NumPages: -1}, {NumPages: pageservice.MaxPages + 1}} {
			if _, err := w.Index().Initialize(w.Context(), space, 0, o); !errors.Is(err, pageservice.ErrInvalid) {
				w.Fatal(o, err)
			}
		}
		if _, err := w.Index().Initialize(w.Context(), space, -1, pageservice.RankOptions{NumPages: 1}); !errors.Is(err, pageservice.ErrInvalid) {
			w.Fatal(err)
		}
		long := strings.Repeat("x", 4097)
		if _, err := w.Index().Reserve(w.Context(), space, 0, []string{"a", long}, true); !errors.Is(err, pageservice.ErrInvalid) {
			w.Fatal(err)
		}
		if r := w.rank(0); r.Free != 2 {
			w.Fatalf("%+v", r)
		}
	},

	"a call whose context has ended changes nothing": func(w *world) {
		w.initialize(2, 0)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if _, err := w.Index().Reserve(ctx, space, 0, []string{"a"}, true); !errors.Is(err, context.Canceled) {
			w.Fatal(err)
		}
		if r := w.rank(0); r.Free != 2 {
			w.Fatalf("%+v", r)
		}
	},

	"a space that was never initialised is empty": func(w *world) {
		other := pageservice.Space{Set: "elsewhere"}
		if found, err := w.Index().Exists(w.Context(), other, []string{"a"}); err != nil || found[0] {
			w.Fatal(found, err)
		}
		if n, err := w.Index().Delete(w.Context(), other, []string{"a"}); err != nil || n != 0 {
			w.Fatal(n, err)
		}
		if err := w.Index().Clear(w.Context(), other); err != nil {
			w.Fatal(err)
		}
		if n, err := w.Index().Evict(w.Context(), other, 1); err != nil || n != 0 {
			w.Fatal(n, err)
		}
	},
}
