package storesuite

import "github.com/kv3fs/kv3fs/kvstore/internal/kv"

var lasting = map[string]func(*world){
	"Flush succeeds twice, and with nothing to do": func(w *world) {
		w.flush()
		w.save(key(0))
		w.flush()
		w.flush()
		w.holds(key(0))
	},

	"flushed blocks exist after Close and Open": func(w *world) {
		w.durable()
		w.save(keys(0, 20)...)
		w.stored(w.beginSave(byLayer(w.shards(keys(20, 20)...))))
		w.flush()
		w.reopen()
		w.prefix(40, append(keys(0, 40), key(99))...)
		w.holds(keys(0, 40)...)
		w.lacks(key(99))
		w.save(keys(40, 10)...)
		w.flush()
		w.reopen()
		w.holds(keys(0, 50)...)
	},

	"Close writes the blocks that were accepted": func(w *world) {
		w.durable()
		for round := range 5 {
			w.save(keys(round*10, 10)...)
			w.reopen()
			w.holds(keys(0, round*10+10)...)
		}
	},

	"a store returns no block of another namespace": func(w *world) {
		w.durable()
		if w.subject.OneNamespace {
			w.Skip("it does not open a directory of another namespace")
		}
		w.save(keys(0, 5)...)
		w.flush()
		w.close()
		w.o.Namespace = kv.Fingerprint{9}
		w.open()
		for i, err := range w.results(w.beginLoad(w.shards(keys(0, 5)...))) {
			if err == nil {
				w.Fatalf("shard %d was loaded", i)
			}
		}
		w.save(keys(0, 5)...)
		w.holds(keys(0, 5)...)
	},
}

func (w *world) durable() {
	w.Helper()
	if !w.subject.Durable {
		w.Skip("it is not durable")
	}
}
