// Package logpace keeps events that clients can repeat at will from filling the log.
package logpace

import (
	"sync"
	"time"
)

const (
	every     = time.Minute // between two messages of a kind
	forget    = time.Hour   // after the last message of a kind
	mostKinds = 1024
)

// Pace lets the first event of a kind through, and then one a minute. The zero value is
// ready for use, and safe for concurrent use.
type Pace struct {
	mu    sync.Mutex
	kinds map[string]*kind
	swept time.Time // when old kinds were last forgotten
}

type kind struct {
	logged     time.Time
	suppressed int
}

// Log reports whether an event of a kind is to be logged now, and how many of its kind were
// not since the last one that was. Kinds beyond the first 1024 of an hour count as one.
func (p *Pace) Log(name string) (suppressed int, now bool) { return p.at(name, time.Now()) }

func (p *Pace) at(name string, now time.Time) (suppressed int, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kinds[name]
	if k == nil && len(p.kinds) >= mostKinds {
		p.sweep(now)
		if len(p.kinds) >= mostKinds {
			name = "" // shared by those that have no place
			k = p.kinds[name]
		}
	}
	if k == nil {
		if p.kinds == nil {
			p.kinds = map[string]*kind{}
		}
		p.kinds[name] = &kind{logged: now}
		return 0, true
	}
	if now.Sub(k.logged) < every {
		k.suppressed++
		return 0, false
	}
	suppressed, k.suppressed, k.logged = k.suppressed, 0, now
	return suppressed, true
}

// sweep forgets old kinds, once a minute: a flood of new ones must not cost a search each.
func (p *Pace) sweep(now time.Time) {
	if now.Sub(p.swept) < every {
		return
	}
	p.swept = now
	for name, k := range p.kinds {
		if now.Sub(k.logged) > forget {
			delete(p.kinds, name)
		}
	}
}
