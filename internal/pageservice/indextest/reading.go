package indextest

import "github.com/kv3fs/kv3fs/internal/pageservice"

var reading = map[string]func(*world){
	"results are in the order of the keys": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a", "b")
		found, err := w.Index().Exists(w.Context(), space, []string{"x", "b", "a", "x", "b"})
		if err != nil || found[0] || !found[1] || !found[2] || found[3] || !found[4] {
			w.Fatal(found, err)
		}
		at, err := w.Index().Locate(w.Context(), space, 0, []string{"b", "x", "a", "b"})
		if err != nil || at[0] == pageservice.None || at[1] != pageservice.None || at[2] == at[0] || at[3] != at[0] {
			w.Fatal(at, err)
		}
	},

	"equal keys of two spaces are different keys": func(w *world) {
		w.initialize(2, 0)
		w.save(0, "a")
		for _, other := range []pageservice.Space{{Namespace: "m", Set: "vllm"}, {Set: "sglang/kv/0"}} {
			if found, err := w.Index().Exists(w.Context(), other, []string{"a"}); err != nil || found[0] {
				w.Fatal(found, err)
			}
			if _, err := w.Index().Initialize(w.Context(), other, 0, pageservice.RankOptions{NumPages: 1}); err != nil {
				w.Fatal(err)
			}
			if g, err := w.Index().Reserve(w.Context(), other, 0, []string{"a"}, true); err != nil || g[0].Present {
				w.Fatal(g, err)
			}
			if err := w.Index().Clear(w.Context(), other); err != nil {
				w.Fatal(err)
			}
		}
		w.exist(true, "a")
	},

	"keys are the caller's, and may change after the call": func(w *world) {
		w.initialize(2, 0)
		w.save(0, "a key")
		if _, ok := w.list()["a key"]; !ok {
			w.Fatal(w.list())
		}
	},

	"a list goes on after a key": func(w *world) {
		w.initialize(8, 0)
		w.save(0, "d", "b", "a", "c")
		got := ""
		for after := ""; ; {
			entries, err := w.Index().List(w.Context(), space, after, 3)
			if err != nil {
				w.Fatal(err)
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				got += e.Key
				after = e.Key
			}
		}
		if got != "abcd" {
			w.Fatal(got)
		}
	},

	"counters count": func(w *world) {
		w.initialize(2, 0)
		w.save(0, "a", "b")
		w.locate(0, "a")
		w.locate(0, "x")
		w.calm()
		w.page(0, "c")
		w.Advance(w.o.Reserve)
		c := w.stat()[0].Counters
		if c.Hits != 1 || c.Misses != 1 || c.Reserved != 3 || c.Confirmed != 2 || c.Evicted != 1 || c.Expired != 1 {
			w.Fatalf("%+v", c)
		}
	},
}
