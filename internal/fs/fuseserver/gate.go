package fuseserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// gate holds requests back while the mount is handed over to a successor. What was read and not answered
// then comes back to that one, which does it for the first time. Forgets, which never come back, pass.
type gate struct {
	shut   atomic.Pointer[chan struct{}] // closed when the gate opens; nil: it is open
	inside atomic.Int64                  // requests that are being worked on
	held   atomic.Int64                  // requests that wait at the gate
}

func (g *gate) enter() {
	for {
		g.inside.Add(1)
		shut := g.shut.Load()
		if shut == nil {
			return
		}
		g.inside.Add(-1)
		g.held.Add(1)
		<-*shut
		g.held.Add(-1)
	}
}

func (g *gate) leave() { g.inside.Add(-1) }

const (
	firstGateLook = 50 * time.Microsecond
	lastGateLook  = 5 * time.Millisecond
)

// Unanswered is the error of Gate: requests that came before it were not answered in time.
type Unanswered struct {
	point string
	// Busy are being worked on. Of the others, Waiting have no answer and Held wait at the gate: what the kernel has not sent yet, and
	// queues, is among them.
	Busy, Waiting, Held int64
	cause               error
}

// Error says how many there are.
func (e *Unanswered) Error() string {
	return fmt.Sprintf("mount %s: %d requests are being worked on, %d are not answered and %d are held back: %v", e.point, e.Busy, e.Waiting, e.Held, e.cause)
}

// Unwrap returns why Gate waited no longer.
func (e *Unanswered) Unwrap() error { return e.cause }

// Gate holds back all requests that come from now on, and returns when those that came before are answered, or with an
// error, Unanswered, when ctx ends before. The caller hands the mount over, or calls Open.
func (m *Mount) Gate(ctx context.Context) error {
	g := m.gate
	if g == nil {
		return fmt.Errorf("mount %s: no state is kept for a successor", m.point)
	}
	shut := make(chan struct{})
	if !g.shut.CompareAndSwap(nil, &shut) {
		return fmt.Errorf("mount %s: is being handed over already", m.point)
	}
	for pause := firstGateLook; ; pause = min(2*pause, lastGateLook) {
		busy, waiting := g.inside.Load(), int64(0)
		held := g.held.Load()
		if busy == 0 {
			// Answers are written after that. The kernel counts what it has no answer to.
			n, err := m.waiting()
			if err != nil {
				return fmt.Errorf("mount %s: whether requests are answered cannot be seen: %w", m.point, err)
			}
			if waiting = n; waiting <= held {
				m.fs.tree.Commit()
				return nil
			}
		}
		select {
		case <-ctx.Done():
			m.fs.tree.Commit()
			return &Unanswered{m.point, busy, waiting, held, ctx.Err()}
		case <-time.After(pause):
		}
	}
}

// Open lets the requests go on that Gate holds back, because the mount is not handed over.
func (m *Mount) Open() {
	if shut := m.gate.shut.Swap(nil); shut != nil {
		close(*shut)
	}
}

// waiting returns how many requests the kernel has no answer to.
func (m *Mount) waiting() (int64, error) {
	control, err := openControl(uint32(m.minor), "waiting", os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer control.Close()
	if m.hasEnded() { // and so the file may be another connection's
		return 0, unix.ENOTCONN
	}
	text, err := io.ReadAll(control)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
