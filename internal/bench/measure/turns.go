package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Rounds are the number and length of the runs.
type Rounds struct {
	Runs    int           // of each contender, after the warm-up
	RunTime time.Duration // of each run
}

// Check refuses rounds that measure nothing.
func (r Rounds) Check() error {
	if r.Runs < 1 || r.RunTime < time.Millisecond {
		return fmt.Errorf("bench: %d runs of %v; choose at least one of a millisecond", r.Runs, r.RunTime)
	}
	return nil
}

// Turn is one run of one contender.
type Turn struct {
	Round int // 0 is the warm-up
	Time  time.Duration
}

// Counts reports whether the run is measured.
func (t Turn) Counts() bool { return t.Round > 0 }

// ErrUnavailable means, in the warm-up, that a contender cannot run here. It gets no
// further turns.
var ErrUnavailable = errors.New("this contender cannot run here")

// Turns lets contenders take turns: a warm-up of a fifth of the run time, and then the
// rounds that count. Another contender begins each round, so that none always follows
// the same one and meets what that one leaves in the disk's queues and buffers.
//
// The first error ends the rounds; once ctx has ended, it is ctx.Err().
func Turns[T comparable](ctx context.Context, r Rounds, contenders []T, run func(context.Context, T, Turn) error) error {
	unavailable := map[T]bool{}
	for round := range r.Runs + 1 {
		turn := Turn{Round: round, Time: r.RunTime}
		if round == 0 {
			turn.Time /= 5
		}
		for i := range contenders {
			x := contenders[(i+round)%len(contenders)]
			if unavailable[x] {
				continue
			}
			err := run(ctx, x, turn)
			switch {
			case err != nil && ctx.Err() != nil:
				return ctx.Err()
			case round == 0 && errors.Is(err, ErrUnavailable):
				unavailable[x] = true
			case err != nil:
				return err
			}
		}
	}
	return nil
}

// Progress counts finished steps for a progress bar. Any number of goroutines may call its
// methods.
type Progress struct {
	report func(done, of int)

	mu       sync.Mutex
	done, of int
}

// NewProgress returns a Progress that calls report, if not nil, one call at a time.
func NewProgress(report func(done, of int)) *Progress { return &Progress{report: report} }

// Expect sets the total number of steps.
func (p *Progress) Expect(steps int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = steps
}

// Step counts one step and reports it.
func (p *Progress) Step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.report != nil {
		p.report(p.done, p.of)
	}
}
