package enginebench

import "github.com/kv3fs/kv3fs/kvstore"

// history knows the blocks of all prompts so far, and so what a store could have had. It is
// not safe for concurrent use.
type history struct {
	seen map[kvstore.Key]bool // true: computed, so that a store could have it
}

func newHistory() *history { return &history{map[kvstore.Key]bool{}} }

// look returns how many leading blocks of a prompt other requests before it had, and how
// many of them were computed by now. found is how many the engine or its store had.
func (h *history) look(keys []kvstore.Key, found int) (earlier, computed int) {
	for ; earlier < len(keys); earlier++ {
		if _, ok := h.seen[keys[earlier]]; !ok && earlier >= found {
			break
		}
	}
	for computed = found; computed < earlier && h.seen[keys[computed]]; computed++ {
	}
	for i, key := range keys {
		h.seen[key] = h.seen[key] || i < found
	}
	return earlier, computed
}

// add says that blocks were computed.
func (h *history) add(keys []kvstore.Key) {
	for _, key := range keys {
		h.seen[key] = true
	}
}
