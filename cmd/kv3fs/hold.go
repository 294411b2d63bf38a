package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/host"
)

// holdCmd runs another command.
type holdCmd struct {
	Patience time.Duration `default:"1m" range:"1s..24h" help:"How long clients' calls may wait for a server that is ready. Then hold gives up: the mount is removed, calls fail, and hold ends with 1."`
	Command  []string      `arg:"" passthrough:"" name:"command" help:"The server and its flags, e.g. serve --config /etc/kv3fs/kv3fs.yaml. Write -- before it."`
}

// held are the commands that serve.
var held = []string{"serve", "keep", "pages"}

// Help is what "kv3fs hold --help" adds to the flags.
func (*holdCmd) Help() string {
	return `For example, as the command of a container:

  kv3fs hold -- serve --config /etc/kv3fs/kv3fs.yaml

hold is for hosts and containers without systemd, whose store of descriptors does the same. It starts the server and keeps
open what the server has it keep: the descriptor of the mount and the listeners of the page service and the admin address. When the server
has crashed, or was killed, hold starts it again, after 0.1s, and after up to 5s where it fails again. Calls that clients make
meanwhile wait. docs/operations.md says what survives.

SIGTERM and SIGINT stop the server, and then hold; a second one kills it. SIGHUP, SIGUSR1 and SIGUSR2 go to the server. As process 1
of a container, hold reaps the processes that others have left. The container must not stop hold and the server together by
killing them: what both hold is gone then.

Exit status: that of a server that has stopped, 0 or 3; 2 where its configuration is wrong; that of a server which never
was ready; 1 where hold gave up. However it ends, the mount is removed and nobody waits for it.`
}

// Validate rejects a command that is no server.
func (c *holdCmd) Validate() error {
	if command := c.server(); len(command) == 0 || !slices.Contains(held, command[0]) {
		return errors.New("what it runs must be serve, keep or pages serve, e.g. kv3fs hold -- serve --config /etc/kv3fs/kv3fs.yaml")
	}
	return nil
}

// server returns the command line of the server.
func (c *holdCmd) server() []string {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		return c.Command[1:]
	}
	return c.Command
}

// Run holds until the server ends for good.
func (c *holdCmd) Run(ctx serverContext, tell *teller) error {
	program, err := fdstore.Program()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := offMounts(host.Local(), dir); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil { // a working directory keeps a file system from being unmounted
		return err
	}
	lines := (&logFlags{Level: logLevel{slog.LevelInfo}, Format: "text"}).open(tell, everything)
	signals, children := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	if os.Getpid() == 1 {
		signal.Notify(children, syscall.SIGCHLD)
		defer signal.Stop(children)
	} else {
		children = nil
	}
	defer relay(tell.hangups.follow(), syscall.SIGHUP, signals)()
	status, err := fdstore.Hold(ctx, fdstore.Options{
		Command: append([]string{program}, c.server()...), Env: os.Environ(), Dir: dir, Patience: c.Patience,
		Inherited: tell.inherited, End: endConnection, Signals: signals, Again: tell.again.follow(), Children: children, Log: lines.Logger(),
	})
	if err == nil && status != 0 {
		return exitStatus(status)
	}
	return err
}

// relay has each value of a channel be a signal of another one, until it is told to end.
func relay(from <-chan struct{}, as os.Signal, to chan<- os.Signal) (end func()) {
	done := make(chan struct{})
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			select {
			case <-from:
			case <-done:
				return
			}
			select {
			case to <- as:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		forwarding.Wait()
	}
}

// endConnection has nobody wait for a mount that no daemon will serve.
func endConnection(of fdstore.Connection, device *os.File) {
	if err := fuseserver.EndMount(device, of.Minor, of.Point); err != nil {
		slog.Error("a mount that nobody serves is left", "err", err)
	}
}

// offMounts reports an error where this process uses a 3FS by its working directory or standard streams: it would wait there for the daemon
// that it is to start. It judges by names, which nothing hangs on.
func offMounts(h host.Host, dir string) error {
	mounts, err := h.Mounts()
	if err != nil {
		return err
	}
	names := []string{dir}
	for fd := range 3 {
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && filepath.IsAbs(name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if m, ok := host.Holding(mounts, name); ok && m.Type == host.HF3FSType {
			return fmt.Errorf("%s is on the mount %s: hold would wait there for the daemon that it is to start; give it another working directory and log file", name, m.Point)
		}
	}
	return nil
}
