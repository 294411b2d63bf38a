package keeper

import "sync"

// keptFiles counts the files that were to go and stayed, each once however often it was its turn.
type keptFiles struct {
	mu     sync.Mutex
	n      int64
	lately map[FileKey]bool
}

// mostKept bounds those that are remembered; beyond it all are forgotten, and count anew.
const mostKept = 1 << 16

func (k *keptFiles) add(key FileKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lately[key]:
		return
	case k.lately == nil, len(k.lately) >= mostKept:
		k.lately = map[FileKey]bool{}
	}
	k.lately[key] = true
	k.n++
}

func (k *keptFiles) Load() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
}
