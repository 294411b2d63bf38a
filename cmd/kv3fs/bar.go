package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows the progress of a command, on a terminal only.
type bar struct {
	*progressbar.ProgressBar
	command string
}

// newBar returns a bar for a command. If hidden is set, it is not shown on a terminal
// either. total is -1 if it is unknown.
func newBar(command, description string, total int, hidden bool, more ...progressbar.Option) bar {
	options := append([]progressbar.Option{
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(!hidden && term.IsTerminal(int(os.Stderr.Fd()))),
		progressbar.OptionSetDescription(description),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own: notices clear the bar
	}, more...)
	return bar{progressbar.NewOptions(total, options...), command}
}

// newBenchBar returns the bar of a benchmark, which gives its number of runs to done.
func newBenchBar(hidden bool) bar { return newBar("bench", "measuring", 1, hidden) }

func (b bar) done(runs, of int) {
	b.ChangeMax(of)
	b.Set(min(runs, of))
}

func (b bar) clear() { b.Clear() }

// notice clears the bar and prints a line to standard error.
func (b bar) notice(line string) {
	b.Clear()
	fmt.Fprintf(os.Stderr, "kv3fs %s: %s\n", b.command, line)
}
