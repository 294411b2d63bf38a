package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// watchdog tells systemd that the daemon works, as long as it does. If systemd hears
// nothing for WatchdogSec=, it kills the daemon and starts it again. What is tried needs no
// disk: a hung disk is no reason for a restart.
type watchdog struct {
	log      *slog.Logger
	interval time.Duration
	try      []func(context.Context) error
	notify   func()
	stopping atomic.Bool
	paused   atomic.Bool
	trying   chan struct{} // holds a value while something is tried
	quit     chan struct{}
}

// newWatchdog returns the watchdog that systemd asks for. Without systemd there is none,
// and it does nothing.
func newWatchdog(log *slog.Logger, try ...func(context.Context) error) *watchdog {
	limit, err := sdnotify.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("no watchdog", "err", err)
	}
	w := &watchdog{
		log: log, interval: limit / 4, try: try, trying: make(chan struct{}, 1), quit: make(chan struct{}),
		notify: func() { _, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyWatchdog) },
	}
	return w
}

func (w *watchdog) start() {
	if w.interval > 0 {
		go w.run()
	}
}

// run ends after end, but it may hang in a call that is tried: nothing waits for it.
func (w *watchdog) run() {
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for {
		if err := w.works(); err == nil {
			w.notify()
		} else {
			w.log.Warn("the daemon's own check failed; systemd restarts it if this lasts", "err", err)
		}
		select {
		case <-tick.C:
		case <-w.quit:
			return
		}
	}
}

// works returns nil if everything that is tried works, and while the daemon stops.
func (w *watchdog) works() error {
	w.trying <- struct{}{}
	defer func() { <-w.trying }()
	ctx, cancel := context.WithTimeout(context.Background(), w.interval)
	defer cancel()
	for _, try := range w.try {
		if w.stopping.Load() || w.paused.Load() {
			break
		}
		if err := try(ctx); err != nil && !w.stopping.Load() && !w.paused.Load() {
			return err
		}
	}
	return nil
}

// stop has the watchdog try nothing any more: a stop has a bound of its own.
func (w *watchdog) stop() { w.stopping.Store(true) }

// pause has the watchdog try nothing until resume, and returns when nothing is being tried, or with an error when ctx ends before.
func (w *watchdog) pause(ctx context.Context) error {
	w.paused.Store(true)
	select {
	case w.trying <- struct{}{}:
		<-w.trying
		return nil
	case <-ctx.Done():
		w.resume()
		return fmt.Errorf("the daemon's look at its own mount has not ended: %w", ctx.Err())
	}
}

func (w *watchdog) resume() { w.paused.Store(false) }

func (w *watchdog) end() { close(w.quit) }

// lookUp returns a check that the mount answers: it looks for a name that nobody has.
// 3fs-virt is answered without the disk, and the kernel does not know the name yet. But the kernel may ask
// for the root's attributes on the way, which come from the data directory. works says whether that works:
// while it does not, a lookup that hangs is no fault of the daemon's.
func lookUp(point string, works func() error) func(context.Context) error {
	var n int
	var pending chan error // of a lookup that was given up
	return func(ctx context.Context) error {
		if pending == nil {
			n++
			name := filepath.Join(point, host.VirtDir, fmt.Sprintf(".watchdog-%d", n))
			answer := make(chan error, 1)
			go func() {
				var st unix.Stat_t
				answer <- unix.Lstat(name, &st)
			}()
			pending = answer
		}
		select {
		case err := <-pending:
			pending = nil
			if !isAnswer(err) {
				return fmt.Errorf("look up a name in %s: %w", filepath.Join(point, host.VirtDir), err)
			}
			return nil
		case <-ctx.Done():
			if works() != nil {
				return nil
			}
			return fmt.Errorf("look up a name in %s: %w", filepath.Join(point, host.VirtDir), ctx.Err())
		}
	}
}

// isAnswer reports whether a lookup of a name that nobody has ended as it does while the mount
// works. EAGAIN is an answer, too: requests of the daemon's user that hang with the data
// directory have taken all that --limit-requests allows. So is EIO, of a data directory that fails.
func isAnswer(err error) bool { return err == unix.ENOENT || err == unix.EAGAIN || err == unix.EIO }
