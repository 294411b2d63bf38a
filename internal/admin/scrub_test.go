package admin

import (
	"context"
	"log/slog"
	"strings"
	"testing"
)

// slowScrubber scrubs until goOn.
type slowScrubber struct{ began, goOn chan struct{} }

func (s slowScrubber) Scrub(ctx context.Context, _ string, _ int64, fn func(Scrubbed) error) error {
	s.began <- struct{}{}
	select {
	case <-s.goOn:
		return fn(Scrubbed{Progress: &ScrubProgress{Files: 1}})
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Scrubs that take long leave room for other calls, and once they have ended there may be others.
func TestManyScrubs(t *testing.T) {
	dir := t.TempDir()
	by := slowScrubber{make(chan struct{}, mostCalls), make(chan struct{})}
	s := NewServer(dir, &endless{}, nil, slog.New(slog.DiscardHandler))
	s.Scrubs(by)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	scrub := func() error { return c.Scrub(ctx, ".", 0, func(Scrubbed) error { return nil }) }
	ended := make(chan error, mostCalls)
	for range mostScrubs {
		go func() { ended <- scrub() }()
	}
	for range mostScrubs {
		<-by.began
	}
	for range mostCalls { // one after the other
		if err := scrub(); err == nil || !strings.Contains(err.Error(), "scrubs run already") {
			t.Fatalf("one more: %v", err)
		}
	}
	if _, err := c.State(t.Context()); err != nil {
		t.Errorf("another call: %v", err)
	}
	close(by.goOn)
	for range mostScrubs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := scrub(); err != nil {
		t.Errorf("after the others: %v", err)
	}
}
