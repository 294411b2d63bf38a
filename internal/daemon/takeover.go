package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/host"
)

// Another process takes over from a daemon that serves, over a socket in the state of restarts:
//
//	newcomer            daemon
//	takeMessage    →                     the newcomer has looked at the state: it would go on
//	               ←    descriptors      nothing is under way any more; or why not, and the daemon goes on
//	haveMessage    →                     from now on somebody else has them as well
//	                    executes a keeper in its place: the locks are free, and no thread is left that could do anything
//	               ←    goMessage
//	servesMessage  →                     the keeper ends
//
// If the newcomer ends before it says that it serves, the connection ends, and the keeper executes the daemon again. If the daemon ends, the
// newcomer goes on once it has the descriptors; before, it gives up, as where there is no daemon.
const (
	takeMessage   = "take over 1"
	haveMessage   = "have"
	goMessage     = "go"
	servesMessage = "serves"

	takeoverSocket = "takeover"
	// refusal begins an answer in place of descriptors.
	refusal = "refused: "

	// takeoverTime bounds how long each answer may take. A newcomer may take longer from goMessage on, and the log says so each time.
	takeoverTime = time.Minute
)

// SuccessorFD is the name of the connection to the newcomer, for the keeper.
const SuccessorFD = "kv3fs-successor"

// dialTakeover connects to the daemon whose state is in a directory, which must be this user's or root's.
func dialTakeover(ctx context.Context, path string) (*net.UnixConn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("no daemon can be asked there: %w", err)
	}
	conn := c.(*net.UnixConn)
	if _, err := trustedPeer(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// trustedPeer returns the process at the other end, which must be root's or this user's.
func trustedPeer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var bad error
	err = raw.Control(func(fd uintptr) { who, bad = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, bad); err != nil {
		return 0, err
	}
	if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("process %d at the other end is of user %d, and must be root's or of this daemon's user", who.Pid, who.Uid)
	}
	return int(who.Pid), nil
}

// hear waits for a message.
func hear(c *net.UnixConn, within time.Duration) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	const most = 4096
	b := make([]byte, most)
	n, err := c.Read(b)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return string(b[:max(n, 0)]), err
}

func say(c *net.UnixConn, text string) error {
	if err := c.SetWriteDeadline(time.Now().Add(quietTime)); err != nil {
		return err
	}
	_, err := c.Write([]byte(text))
	return err
}

// Takeover is a newcomer's part of a takeover.
type Takeover struct{ conn *net.UnixConn }

// TakeOver asks the daemon that serves with a configuration like c for all that it has, and puts its descriptors into c.Descriptors. It
// returns when that daemon does nothing any more: the caller is to Run, and then to call Serves. After an error the daemon goes on.
func TakeOver(ctx context.Context, c Config) (*Takeover, error) {
	if _, err := CheckState(c); err != nil {
		return nil, fmt.Errorf("this daemon cannot take over: %w", err)
	}
	me, err := thisHost(host.Local(), c.Identity)
	if err != nil {
		return nil, err
	}
	data, err := dataDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	path, _, _, err := restartPlace(c.RestartState, data, me)
	if err != nil {
		return nil, err
	}
	conn, err := dialTakeover(ctx, path+"/"+takeoverSocket)
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	has, err := takeFrom(conn, c.Descriptors)
	ended := ctx.Err() == nil && hasEnded(err)
	switch {
	case err == nil, ended && has: // if it has ended: its locks say so
		if err != nil {
			c.Log.Warn("the daemon to take over from has ended by itself", "err", err)
		}
		return &Takeover{conn}, nil
	case ended: // going on without the mount would throw away what another daemon needs, where somebody keeps the device
		err = fmt.Errorf("the daemon has ended before it handed anything over: where systemd or kv3fs hold has started it, another one goes on; else start this one without --takeover: %w", err)
	}
	return nil, errors.Join(fmt.Errorf("take over: %w", err), conn.Close())
}

// hasEnded reports whether an error of a connection says that the process at the other end is gone.
func hasEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// takeFrom takes over the descriptors that a daemon sends, and returns when that does nothing any more. After an error it may have them
// nevertheless.
func takeFrom(conn *net.UnixConn, into *fdstore.Store) (has bool, err error) {
	if err := say(conn, takeMessage); err != nil {
		return false, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(takeoverTime)); err != nil {
		return false, err
	}
	said, err := into.Receive(conn)
	has = err == nil && said == ""
	if has {
		if err = say(conn, haveMessage); err == nil {
			said, err = hear(conn, takeoverTime)
		}
	}
	switch {
	case err != nil:
		return has, err
	case said != goMessage:
		return has, errors.New(said)
	}
	return true, nil
}

// Serves tells the predecessor that it may end.
func (t *Takeover) Serves(log *slog.Logger) {
	if err := errors.Join(say(t.conn, servesMessage), t.conn.Close()); err != nil {
		log.Info("the process before has ended by itself", "err", err)
	}
}

// offer has newcomers take over until stop is called.
func (u *upgrader) offer() (stop func()) {
	if u.state == nil || len(u.args) == 0 {
		return func() {}
	}
	path := u.state.Path(takeoverSocket)
	_ = os.Remove(path) // a former daemon's; the state is ours alone
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		u.log.Warn("no other process can take over from this daemon", "err", err)
		return func() {}
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			if err := u.handTo(conn); err != nil {
				u.log.Warn("no process has taken over: all goes on", "err", err)
				_ = say(conn, refusal+err.Error())
			}
			_ = conn.Close() // all was said
		}
	})
	return func() {
		_ = l.Close() // who connects now learns that the daemon stops
		accepting.Wait()
	}
}

// handTo hands over to the process at the other end of a connection. It returns only if that does not come to pass.
func (u *upgrader) handTo(conn *net.UnixConn) error {
	pid, err := trustedPeer(conn)
	if err != nil {
		return err
	}
	switch said, err := hear(conn, quietTime); {
	case err != nil:
		return err
	case said != takeMessage:
		return fmt.Errorf("process %d says %q, and this version understands %q", pid, said, takeMessage)
	}
	select {
	case u.one <- struct{}{}:
		defer func() { <-u.one }()
	default:
		return errors.New("an upgrade is under way, or the daemon stops")
	}
	h, goOn, err := u.begin()
	if err != nil {
		return err
	}
	defer goOn()
	if err := h.leave(u.state); err != nil {
		return err
	}
	return errors.Join(u.leaveTo(conn, pid), u.state.Remove(handoverFile))
}

// leaveTo sends a newcomer all that there is, and executes the keeper.
func (u *upgrader) leaveTo(conn *net.UnixConn, pid int) error {
	if err := u.descriptors.Send(conn); err != nil {
		return err
	}
	switch said, err := hear(conn, quietTime); {
	case err != nil:
		return err
	case said != haveMessage:
		return fmt.Errorf("process %d says %q", pid, said)
	}
	u.audit.Info("another process takes over", "call", "takeover", "pid", pid)
	if u.serving.Err() != nil { // the keeper would never hear of the SIGTERM
		return errStopping
	}
	return u.descriptors.ExecWith(SuccessorFD, conn, "/proc/self/exe", append([]string{u.args[0], KeeperCommand, "--"}, u.args[1:]...))
}

// hearStarted waits for what a newcomer says when it has started, for as long as that lives: it has all that a second daemon would need,
// its locks, too. Who finds that it hangs can kill it.
func hearStarted(conn *net.UnixConn, pid int, tick time.Duration) (said string, err error) {
	for {
		if said, err = hear(conn, tick); !errors.Is(err, os.ErrDeadlineExceeded) {
			return said, err
		}
		slog.Warn("waiting for the process that takes over: it has not started yet", "pid", pid, "cure", "if it hangs, kill it: the daemon before goes on then")
	}
}

// KeeperCommand is the command of the keeper, before "--" and the command line of the daemon.
const KeeperCommand = "await-takeover"

// AwaitTakeover is the keeper: it waits until the newcomer serves. If that ends before, it executes the daemon again, whose command line is
// args.
func AwaitTakeover(store *fdstore.Store, args []string) error {
	file := store.Take(SuccessorFD)
	if file == nil {
		return errors.New("this is for a daemon that another process takes over from")
	}
	store.Retain()
	c, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%s is no connection of a newcomer", SuccessorFD)
	}
	defer func() { _ = conn.Close() }() // all was said
	pid, err := trustedPeer(conn)
	if err != nil {
		return err
	}
	if err = say(conn, goMessage); err == nil {
		var said string
		if said, err = hearStarted(conn, pid, takeoverTime); err == nil && said == servesMessage {
			_, _ = sdnotify.SdNotify(false, fmt.Sprintf("MAINPID=%d", pid)) // there may be nobody who watches this process
			return nil
		}
	}
	slog.Warn("the process that was to take over does not serve: going on", "pid", pid, "err", err)
	return store.Exec("/proc/self/exe", append(os.Args[:1:1], args...))
}
