package ringserver

import (
	"context"
	"fmt"
	"time"
)

// Alive returns once the leader of each priority has looked for work, which needs no disk
// and no client. Its error says which did not until ctx ended.
func (s *Server) Alive(ctx context.Context) error {
	const lookAgain = time.Millisecond
	for i, p := range s.pollers {
		before := p.turns.Load()
		p.wake()
		for p.turns.Load() == before {
			select {
			case <-ctx.Done():
				return fmt.Errorf("ring server: nothing serves rings of priority %v: %w", priorities[i], ctx.Err())
			case <-time.After(lookAgain):
			}
		}
	}
	return nil
}
