package storesuite

import "github.com/kv3fs/kv3fs/kvstore/kv"

var lasting = map[string]func(*world){
	"Flush succeeds with nothing to do, and twice": func(w *world) {
		w.flush()
		w.dump(key(0))
		w.flush()
		w.flush()
		w.holds(key(0))
	},

	"what was flushed is there after Close and Open": func(w *world) {
		w.durable()
		w.dump(keys(0, 20)...)
		w.stored(w.beginDump(byLayer(w.shards(keys(20, 20)...))))
		w.flush()
		w.reopen()
		w.prefix(40, append(keys(0, 40), key(99))...)
		w.holds(keys(0, 40)...)
		w.lacks(key(99))
		w.dump(keys(40, 10)...)
		w.flush()
		w.reopen()
		w.holds(keys(0, 50)...)
	},

	"Close writes what was accepted": func(w *world) {
		w.durable()
		for round := range 5 {
			w.dump(keys(round*10, 10)...)
			w.reopen()
			w.holds(keys(0, round*10+10)...)
		}
	},

	"a store returns no block of another namespace": func(w *world) {
		w.durable()
		if w.subject.OneNamespace {
			w.Skip("it does not open what is another's")
		}
		w.dump(keys(0, 5)...)
		w.flush()
		w.close()
		w.o.Namespace = kv.Fingerprint{9}
		w.open()
		for i, err := range w.results(w.beginLoad(w.shards(keys(0, 5)...))) {
			if err == nil {
				w.Fatalf("shard %d was loaded", i)
			}
		}
		w.dump(keys(0, 5)...)
		w.holds(keys(0, 5)...)
	},
}

func (w *world) durable() {
	w.Helper()
	if !w.subject.Durable {
		w.Skip("it keeps nothing after Close")
	}
}
