// Command kv3fs serves a directory as a 3FS, with a mount and rings. It also runs the
// page service alone, writes engine configurations, checks hosts, and measures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/fdstore"
)

// Exit statuses besides 0. A command returns an exitStatus to exit with another one.
// The doctor also exits with 2 if it finds a failure.
const (
	exitFailed      = 1
	exitUsage       = 2   // the command line is wrong
	exitCutOff      = 3   // serve: stopped in order, but clients that did not leave were cut off
	exitInterrupted = 130 // stopped by a signal before it finished
)

// How long a command may continue after a signal.
const (
	abandonAfter = 2 * time.Second  // one that does not use the context
	tidyAfter    = 10 * time.Second // one that does; a mount that hangs answers none of its calls
	stopInOrder  = math.MaxInt64    // a server, which bounds its stop itself
)

// sameSignal is how long after the first signal further ones count as the same
// request: timeout(1) and terminals signal a process and its group.
const sameSignal = 100 * time.Millisecond

// exitStatus is an error that only sets the program's exit status. No message is
// printed for it: the command has already reported the problem.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// mistake is an error of a command that has not begun, because its flags do not fit.
type mistake struct{ error }

// Unwrap returns the error.
func (m mistake) Unwrap() error { return m.error }

type cli struct {
	Serve         serveCmd         `cmd:"" help:"Serve a directory as a 3FS, with a mount, its control directory and rings."`
	Hold          holdCmd          `cmd:"" help:"Run a server, keep its mount and addresses open while it is down, and start it again."`
	Keep          keepCmd          `cmd:"" help:"Keep a directory that others serve within a size, from one of many hosts."`
	CSI           csiCmd           `cmd:"" name:"csi" help:"Give pods of this Kubernetes node parts of a daemon's mount, as kubelet's storage plugin."`
	Pages         pagesCmd         `cmd:"" help:"Run, inspect or empty the page service for vLLM's and SGLang's 3FS connectors."`
	Status        statusCmd        `cmd:"" help:"Show how the daemons of this host are: what they serve, since when, their limits, and what is wrong."`
	Ready         readyCmd         `cmd:"" help:"Write and read a little through a ring of a mount, as an engine does, and say whether that works."`
	Top           topCmd           `cmd:"" help:"Show live in a terminal what a daemon moves, holds, evicts and serves to whom."`
	Stat          statCmd          `cmd:"" help:"Show a daemon's limits and what it has removed, or all that it knows of a file or directory."`
	DU            duCmd            `cmd:"" name:"du" help:"Show what directories, programs and models take of a daemon's capacity."`
	LS            lsCmd            `cmd:"" name:"ls" help:"List files by program, model, age and uses, or those that are incomplete."`
	Evict         evictCmd         `cmd:"" help:"Remove files now, those that may safely go."`
	Pin           pinCmd           `cmd:"" help:"Keep files, whatever room is needed."`
	Unpin         unpinCmd         `cmd:"" help:"Let pinned files go again when their turn comes."`
	TTL           ttlCmd           `cmd:"" name:"ttl" help:"Remove files that nobody has used for long."`
	Quota         quotaCmd         `cmd:"" help:"Limit what directories take."`
	Scrub         scrubCmd         `cmd:"" help:"Read files at leisure and compare them with the daemon's checksums."`
	Replay        replayCmd        `cmd:"" help:"Replay a trace of prompts through rings as an inference engine would, and check every byte."`
	Trace         traceCmd         `cmd:"" help:"Generate traces of prompts."`
	Bench         benchCmd         `cmd:"" help:"Measure rings, page service, block stores, or a simulated engine."`
	Doctor        doctorCmd        `cmd:"" help:"Find out why kv3fs fails or is slow on this host, and how to fix it."`
	Plan          planCmd          `cmd:"" help:"Calculate when loading KV cache is faster than recomputing it, and the time to the first token."`
	EngineConfig  engineConfigCmd  `cmd:"" help:"Print a ready-to-use configuration for an inference engine."`
	Upgrade       upgradeCmd       `cmd:"" help:"Have a daemon execute another version of kv3fs in place of its own, while its clients only wait for a moment."`
	Reload        reloadCmd        `cmd:"" help:"Have a daemon read its configuration file again, and change what may change while it serves."`
	Version       versionCmd       `cmd:"" help:"Print this build's version, commit and protocols."`
	Completion    completionCmd    `cmd:"" help:"Print what a shell must read to complete kv3fs commands."`
	Help          helpCmd          `cmd:"" help:"Show help for a command."`
	Probe         probeCmd         `cmd:"" hidden:"" help:"Run a probe for the doctor."`
	Complete      completeCmd      `cmd:"" hidden:"" help:"Complete a command line, for the scripts that completion prints."`
	AwaitTakeover awaitTakeoverCmd `cmd:"" hidden:"" help:"Wait for the process that takes over from a daemon."`
	Manual        manualCmd        `cmd:"" hidden:"" help:"Write man pages, or docs/reference."`

	PrintVersion versionFlag `name:"version" env:"-" yaml:"-" help:"Print version, commit and protocols, and exit."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// serverContext is the context of a command that serves until a signal, and then stops in
// its own time.
type serverContext struct {
	context.Context // because kong chooses what it injects by its type
}

// run executes a command line. A command that uses the context stops in an orderly way
// when a signal cancels the context. Other commands, and the parsing before them, may be
// stuck in a system call, for example on a mount that hangs, and so may the clean-up of
// those that use it. Some time after a signal, run returns without waiting for them,
// because the process is about to exit.
func run(args []string, stdout, stderr io.Writer) int {
	tell := newTeller(stderr)
	var err error
	if tell.inherited, err = fdstore.Inherit(); err != nil {
		tell.fails("cannot take over what was handed over", err)
		return exitFailed
	}
	ctx, stop := untilSignalled(tell)
	defer stop()
	var limit atomic.Int64 // grows when the command takes the context
	limit.Store(int64(abandonAfter))
	ended := make(chan int, 1)
	go func() {
		ended <- execute(args, stdout, tell, func(server bool) context.Context {
			limit.Store(int64(tidyAfter))
			if server {
				limit.Store(stopInOrder)
			}
			return ctx
		})
	}()
	select {
	case status := <-ended:
		return status
	case <-ctx.Done():
	}
	var waited time.Duration
	for {
		most := time.Duration(limit.Load())
		select {
		case status := <-ended:
			return status
		case <-time.After(most - waited):
		}
		if waited = most; waited >= time.Duration(limit.Load()) {
			break
		}
	}
	if waited == abandonAfter {
		tell.fails("interrupted", errors.New("interrupted"))
	} else {
		tell.fails("exiting without cleaning up", fmt.Errorf("interrupted, but a call has not returned for %v, perhaps because a mount's daemon hangs; exiting without cleaning up", waited))
	}
	return exitInterrupted
}

// execute parses a command line and runs its command. A command that uses the context
// gets it from getContext, which it tells whether it is a server.
func execute(args []string, stdout io.Writer, tell *teller, getContext func(server bool) context.Context) int {
	values := &flagValues{args: args}
	parser, err := newParser(values, stdout, tell, getContext)
	if err != nil {
		tell.fails(cannotStart, err)
		return exitFailed
	}
	var status exitStatus
	kctx, err := parser.Parse(withNegatives(args))
	tell.begin(values)
	switch {
	case errors.As(err, &status):
		return int(status)
	case err != nil:
		tell.fails(cannotStart, plain(values.explain(err)))
		if tell.log.Load() == nil {
			fmt.Fprintf(tell.stderr, "Try \"%s --help\".\n", typedCommand(err))
		}
		return exitUsage
	}
	var wrong *badValue
	var refused mistake
	switch err := kctx.Run(); {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &wrong), errors.As(err, &refused):
		tell.fails(cannotStart, values.explain(err))
		return exitUsage
	case errors.Is(err, context.Canceled):
		tell.fails("interrupted", errors.New("interrupted"))
		return exitInterrupted
	default:
		tell.fails("kv3fs ends", err)
		return exitFailed
	}
}

// cannotStart is what the log says of a mistake in the configuration.
const cannotStart = "kv3fs cannot start: its configuration is wrong"

// withNegatives joins a flag and a negative number after it ("--mfu -1"), which would be
// taken for a short flag, so that the error is about the number.
func withNegatives(args []string) (joined []string) {
	for i, arg := range args {
		if arg == "--" {
			return append(joined, args[i:]...)
		}
		negative := len(arg) > 1 && arg[0] == '-' && (arg[1] == '.' || arg[1] >= '0' && arg[1] <= '9')
		if last := len(joined) - 1; negative && last >= 0 && strings.HasPrefix(joined[last], "--") && !strings.Contains(joined[last], "=") {
			joined[last] += "=" + arg
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

// plain says in plain words that a flag at the end has no value.
func plain(err error) error {
	if flag, what, ok := strings.Cut(err.Error(), ": expected "); ok && strings.HasSuffix(what, `but got "EOL" (<EOL>)`) {
		return errors.New(flag + ": its value is missing")
	}
	return err
}

// newParser returns the parser of command lines. It keeps in values where they come from.
func newParser(values *flagValues, stdout io.Writer, tell *teller, getContext func(server bool) context.Context) (*kong.Kong, error) {
	return kong.New(&cli{},
		kong.Name("kv3fs"),
		kong.Description("KV-cache storage for LLM inference with the interfaces of 3FS. A flag can also be set in the environment, by the variable that its help names."),
		kong.DefaultEnvars("KV3FS"),
		kong.Resolvers(values),
		kong.KindMapper(reflect.String, kong.MapperFunc(exactText)),
		kong.TypeMapper(reflect.TypeFor[givenPath](), kong.MapperFunc(exactPath)),
		kong.Bind(values, tell),
		kong.UsageOnError(),
		kong.Vars{"engines": strings.Join(engineconfig.Names(), ", ")},
		kong.Writers(stdout, tell.stderr),
		kong.BindToProvider(func() (context.Context, error) { return getContext(false), nil }),
		kong.BindToProvider(func() (serverContext, error) { return serverContext{getContext(true)}, nil }),
		kong.BindTo(stdout, (*io.Writer)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
	)
}

// typedCommand returns the command of a command line that failed to parse, as far as it
// was recognised: "kv3fs pages stat".
func typedCommand(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil && !node.Hidden && node.Name != "help" {
			return node.FullPath()
		}
	}
	return "kv3fs"
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, such as serve or bench ring. Default: an overview of all commands."`
}

// Validate rejects a command that does not exist.
func (c *helpCmd) Validate(kctx *kong.Context) error {
	_, err := c.trace(kctx)
	return err
}

// Run shows the help.
func (c *helpCmd) Run(kctx *kong.Context) error {
	about, err := c.trace(kctx)
	if err != nil {
		return err
	}
	return about.PrintUsage(false)
}

// trace finds the command to show help for.
func (c *helpCmd) trace(kctx *kong.Context) (*kong.Context, error) {
	about, err := kong.Trace(kctx.Kong, c.Command)
	if err == nil {
		err = about.Error
	}
	return about, err
}

// untilSignalled returns a context that the first SIGINT, SIGTERM or SIGHUP cancels, for
// an orderly stop. A second signal, more than sameSignal later, ends the process at once;
// the next daemon removes what it leaves behind. stop ends the goroutine that watches
// for signals. A SIGHUP that is ignored, as under nohup, stays so; one that a server takes
// for a request to reload stops nothing.
func untilSignalled(tell *teller) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var first time.Time
		for {
			var cause error
			select {
			case s := <-signals:
				if s != syscall.SIGTERM { // somebody ends it by hand
					cause = daemon.ErrNoSuccessor
				}
				if s == syscall.SIGHUP && tell.hangups.take() {
					continue
				}
			case <-done:
				return
			}
			switch {
			case first.IsZero():
				first = time.Now()
				cancel(cause)
			case time.Since(first) > sameSignal && tell.again.take():
			case time.Since(first) > sameSignal:
				tell.fails("exiting at once", errors.New("second stop signal; exiting at once"))
				os.Exit(exitFailed)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-ended
		cancel(nil)
	}
}
