package ringserver

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAlive(t *testing.T) {
	s, _ := serve(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 100 {
		if err := s.Alive(ctx); err != nil {
			t.Fatal(err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	idle := &Server{pollers: [3]*poller{newPoller(s, priorities[0], 1)}} // nobody serves it
	if err := idle.Alive(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing serves the rings: %v", err)
	}
}
