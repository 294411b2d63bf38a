package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/host"
)

// upgrader has the process of a daemon that serves execute another program, which goes on where this one is. Clients wait meanwhile.
type upgrader struct {
	stillness
	args        []string // of this process; nil: it cannot be replaced
	version     string
	descriptors *fdstore.Store
	state       *restart.Dir // nil: nothing outlives this daemon
	audit       *slog.Logger

	came    handedOver      // by which this daemon has come
	ready   atomic.Int64    // since the boot, when it was ready; 0: it is not
	one     chan struct{}   // held by the upgrade that is under way
	serving context.Context // ends when the daemon stops
	end     context.CancelFunc
}

// newUpgrader returns one that begins nothing more once ctx has ended.
func newUpgrader(ctx context.Context, q stillness, c *Config, came handedOver) *upgrader {
	u := &upgrader{
		stillness: q, args: c.Args, version: c.Version, descriptors: c.Descriptors, state: c.Rings.Restart, audit: c.audit(), came: came,
		one: make(chan struct{}, 1),
	}
	u.serving, u.end = context.WithCancel(ctx)
	return u
}

// askTime bounds how long a new program may look at the state before it takes it over.
const askTime = time.Minute

// CheckStateFlag has a program say whether it would take over from the daemon that serves.
const CheckStateFlag = "--check-state"

// tookOver is in the output of a program with CheckStateFlag that would.
const tookOver = "would take over"

// Successor returns what the command that has asked for an upgrade waits for.
func (u *upgrader) Successor() admin.Successor {
	s := admin.Successor{Token: u.came.Token, PID: os.Getpid(), Version: u.version, MountKept: u.mnt.Adopted()}
	if ready := time.Duration(u.ready.Load()); ready != 0 {
		s.Ready = true
		if u.came.Token != "" {
			s.Pause = ready - u.came.Since
		}
	}
	return s
}

// serves notes that the daemon is ready.
func (u *upgrader) serves() {
	u.ready.Store(int64(host.SinceBoot()))
	if s := u.Successor(); s.Token != "" {
		u.log.Info("took over from the program before", "pause", s.Pause.Round(time.Millisecond/10), "mount_kept", s.MountKept)
	}
}

// Upgrade executes a program, "": that of this process's path. It calls begun right before, and returns only if that does not come
// to pass: then all goes on as before.
func (u *upgrader) Upgrade(ctx context.Context, program string, by admin.Caller, begun func(admin.Begun) error) error {
	err := u.upgrade(ctx, program, by, begun)
	u.audit.Warn("upgrade refused: nothing was changed", append([]any{"call", "upgrade", "err", err}, by.Attributes()...)...)
	return err
}

func (u *upgrader) upgrade(ctx context.Context, program string, by admin.Caller, begun func(admin.Begun) error) error {
	select {
	case u.one <- struct{}{}:
		defer func() { <-u.one }()
	default:
		return errors.New("another upgrade is under way")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(u.serving, func() { cancel(errStopping) })()
	program, err := u.program(program)
	if err != nil {
		return err
	}
	if err := u.check(ctx, program); err != nil {
		return err
	}
	h, goOn, err := u.begin()
	if err != nil {
		return err
	}
	defer goOn()
	if err := h.leave(u.state); err != nil {
		return err
	}
	if err := begun(admin.Begun{Token: h.Token, PID: os.Getpid()}); err != nil {
		return errors.Join(err, u.state.Remove(handoverFile))
	}
	u.audit.Info("executing a program in place of this one", append([]any{"call", "upgrade", "executes", program}, by.Attributes()...)...)
	err = errStopping
	if u.serving.Err() == nil { // the next program never hears of a SIGTERM that this one has got
		err = u.descriptors.Exec(program, u.args)
	}
	return errors.Join(err, u.state.Remove(handoverFile))
}

// program returns the path of what is to be executed.
func (u *upgrader) program(given string) (string, error) {
	switch {
	case u.state == nil:
		return "", errors.New("rings and the mount end with this daemon, since it keeps no state for a next one: give serve --restart-state auto, or a directory, and restart it once")
	case len(u.args) == 0:
		return "", errors.New("this daemon is part of another program")
	case given == "":
		return fdstore.Program()
	case !filepath.IsAbs(given):
		return "", fmt.Errorf("%s is no absolute path", given)
	}
	return given, nil
}

// check has the program say whether it would take over.
func (u *upgrader) check(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var out bytes.Buffer
	asks := exec.CommandContext(ctx, program, append(slices.Clone(u.args[1:]), CheckStateFlag)...)
	asks.Stdout, asks.Stderr, asks.WaitDelay = &out, &out, quietTime
	err := asks.Run()
	said := strings.TrimPrefix(strings.TrimSpace(out.String()), "kv3fs: ")
	const most = 4096
	said = said[:min(len(said), most)]
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s has not answered: %w", program, CheckStateFlag, context.Cause(ctx))
	case err != nil && said == "":
		return fmt.Errorf("%s %s: %w", program, CheckStateFlag, err)
	case err != nil:
		return fmt.Errorf("%s would not take over from this daemon: %s", program, said)
	case !strings.Contains(said, tookOver):
		return fmt.Errorf("%s is no kv3fs that can take over: with %s it says %q", program, CheckStateFlag, said)
	}
	return nil
}

// stop has no further upgrade begin, and waits for the one that is under way.
func (u *upgrader) stop() {
	u.end()
	u.one <- struct{}{} // for good
}
