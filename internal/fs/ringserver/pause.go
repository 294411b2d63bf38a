package ringserver

import (
	"context"
	"fmt"
	"time"
)

const (
	firstPauseLook = 50 * time.Microsecond
	lastPauseLook  = 5 * time.Millisecond
)

// Pause has no worker begin anything more, and returns when none works. What clients submit meanwhile waits, and what was taken from
// rings and not completed is in their journals. After an error, which says that requests did not end before ctx, the
// server goes on, as after Resume.
func (s *Server) Pause(ctx context.Context) error {
	s.paused.Store(true)
	for pause := firstPauseLook; ; pause = min(2*pause, lastPauseLook) {
		working := 0
		for _, p := range s.pollers {
			working += p.atWork()
		}
		if working == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			s.Resume()
			return fmt.Errorf("%d batches of requests of rings have not ended, perhaps because the disk hangs: %w", working, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.paused.Store(false)
	for _, p := range s.pollers {
		p.wake()
	}
}

// atWork returns how many workers have a batch, stuck ones among them.
func (p *poller) atWork() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.working)
	for _, u := range p.users {
		if u.inTurn { // a worker looks at its rings
			n++
		}
	}
	return n
}
