package main

import (
	"fmt"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar is the progress bar of a bench. It is shown only on a terminal.
type bar struct{ *progressbar.ProgressBar }

func newBar(never bool) bar {
	return bar{progressbar.NewOptions(1,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(!never && term.IsTerminal(int(os.Stderr.Fd()))),
		progressbar.OptionSetDescription("measuring"),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
	)}
}

func (b bar) done(runs, of int) {
	b.ChangeMax(of)
	b.Set(min(runs, of))
}

func (b bar) clear() { b.Clear() }

// notice prints a line on standard error.
func (b bar) notice(line string) {
	b.Clear()
	fmt.Fprintln(os.Stderr, "kv3fs bench:", line)
}
