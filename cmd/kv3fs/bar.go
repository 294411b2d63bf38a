package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar is the progress of a command, shown on a terminal only.
type bar struct {
	*progressbar.ProgressBar
	command string
}

// newBar makes a bar for a command. never hides it on terminals, too. total is -1 if it is
// not known.
func newBar(command, description string, total int, never bool, more ...progressbar.Option) bar {
	options := append([]progressbar.Option{
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(!never && term.IsTerminal(int(os.Stderr.Fd()))),
		progressbar.OptionSetDescription(description),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own: notices clear the bar
	}, more...)
	return bar{progressbar.NewOptions(total, options...), command}
}

// newBenchBar makes the bar of a benchmark, which says itself how many runs there are.
func newBenchBar(never bool) bar { return newBar("bench", "measuring", 1, never) }

func (b bar) done(runs, of int) {
	b.ChangeMax(of)
	b.Set(min(runs, of))
}

func (b bar) clear() { b.Clear() }

// notice prints a line for a person.
func (b bar) notice(line string) {
	b.Clear()
	fmt.Fprintf(os.Stderr, "kv3fs %s: %s\n", b.command, line)
}
