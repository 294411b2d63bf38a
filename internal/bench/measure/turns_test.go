package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	var got []string
	err := Turns(t.Context(), Rounds{Runs: 2, RunTime: time.Second}, []string{"a", "b", "c"}, func(_ context.Context, x string, turn Turn) error {
		got = append(got, fmt.Sprint(x, turn.Round, turn.Time, turn.Counts()))
		if x == "c" {
			return fmt.Errorf("no c: %w", ErrUnavailable)
		}
		return nil
	})
	want := []string{"a0 200ms false", "b0 200ms false", "c0 200ms false", "b1 1s true", "a1 1s true", "a2 1s true", "b2 1s true"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestTurnsEnd(t *testing.T) {
	broken := errors.New("broken")
	runs := 0
	fails := func(round int, err error) func(context.Context, string, Turn) error {
		return func(_ context.Context, _ string, turn Turn) error {
			runs++
			if turn.Round == round {
				return err
			}
			return nil
		}
	}
	if err := Turns(t.Context(), Rounds{Runs: 3}, []string{"a", "b"}, fails(1, broken)); err != broken || runs != 3 {
		t.Errorf("%v after %d runs", err, runs)
	}
	if err := Turns(t.Context(), Rounds{Runs: 3}, []string{"a"}, fails(1, ErrUnavailable)); err != ErrUnavailable {
		t.Errorf("unavailable after the warm-up: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Turns(ctx, Rounds{Runs: 3}, []string{"a"}, fails(0, broken)); err != context.Canceled {
		t.Errorf("interrupted: %v", err)
	}
}

func TestRoundsCheck(t *testing.T) {
	for _, r := range []Rounds{{0, time.Second}, {1, time.Microsecond}, {-1, 0}} {
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), "at least one of a millisecond") {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if err := (Rounds{1, time.Millisecond}).Check(); err != nil {
		t.Error(err)
	}
}

func TestProgress(t *testing.T) {
	var got [][2]int
	p := NewProgress(func(done, of int) { got = append(got, [2]int{done, of}) })
	p.Expect(2)
	p.Step()
	p.Step()
	if !slices.Equal(got, [][2]int{{1, 2}, {2, 2}}) {
		t.Error(got)
	}
	NewProgress(nil).Step()
}
