package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// A reload whose files cannot be read keeps nobody waiting: neither who gives it up, nor a stop, nor further reloads of a daemon that stops.
func TestReloadHangs(t *testing.T) {
	r := newReloader(slog.New(slog.DiscardHandler))
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	r.read = func() (Reload, error) {
		began <- struct{}{}
		<-release
		return Reload{}, errors.New("too late")
	}
	given := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	results := make(chan error)
	ask := func(ctx context.Context) {
		_, err := r.reload(ctx, nil)
		results <- err
	}
	go ask(ctx)
	<-began
	cancel(given)
	if err := <-results; !errors.Is(err, given) {
		t.Errorf("given up: %v", err)
	}
	go ask(t.Context()) // behind the one that hangs
	r.stop()
	if err := <-results; !errors.Is(err, errStopping) {
		t.Errorf("behind it, when the daemon stops: %v", err)
	}
	if _, err := r.reload(t.Context(), nil); !errors.Is(err, errStopping) {
		t.Errorf("afterwards: %v", err)
	}
}

// A reload that is being read when the daemon stops changes nothing.
func TestStopDuringReload(t *testing.T) {
	r := newReloader(slog.New(slog.DiscardHandler))
	began, release := make(chan struct{}), make(chan struct{})
	r.read = func() (Reload, error) {
		close(began)
		<-release
		return Reload{Commit: func([]Setting) { t.Error("it has changed something") }}, nil
	}
	result := make(chan error)
	go func() {
		_, err := r.reload(t.Context(), nil)
		result <- err
	}()
	<-began
	r.stop()
	close(release)
	if err := <-result; !errors.Is(err, errStopping) {
		t.Error(err)
	}
}
