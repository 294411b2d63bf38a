package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// pinCmd keeps files whatever room is needed.
type pinCmd struct {
	operateFlags
	originFlags
	Patterns []string `arg:"" optional:"" name:"pattern" help:"Files, directories (all that is and will be below) or patterns such as '/mnt/3fs/models/*.data', quoted. With --owner or --model the default is all of the daemon's files, without them pin lists the pins."`
}

// Help says what a pin is.
func (*pinCmd) Help() string {
	return "A pin is a rule: it also holds for files that come later, and across restarts. --owner and --model narrow it by what names tell. " +
		"How old a file is and how often it was used changes by itself, so no pin goes by that: list such files with kv3fs ls, and pin them."
}

// unpinCmd ends pins.
type unpinCmd struct {
	operateFlags
	originFlags
	Patterns []string `arg:"" optional:"" name:"pattern" help:"Patterns, as they were given to pin, or as pin lists them with --data or --mount. Default, with --owner or --model: all of the daemon's files, as for pin."`
}

// Help says which pins end.
func (*unpinCmd) Help() string {
	return "It ends the pins that were made with the same pattern, --owner and --model; others that keep some of the same files stay."
}

// pinsReport is what both print as JSON.
type pinsReport struct {
	Pins   []string     `json:"pins"`              // those of a pattern alone
	PinsBy []keeper.Pin `json:"pins_by,omitempty"` // the others
}

// Run pins them, or lists pins.
func (c *pinCmd) Run(ctx context.Context, out io.Writer) error {
	return c.pins(ctx, out, "pin", c.Patterns, c.origin(), (*admin.Client).Pin)
}

// Validate rejects a command that names no pin.
func (c *unpinCmd) Validate() error {
	if len(c.Patterns) == 0 && !c.given() {
		return errors.New("expected \"<pattern> ...\", --owner or --model: kv3fs pin lists the pins that there are")
	}
	return nil
}

// Run ends the pins.
func (c *unpinCmd) Run(ctx context.Context, out io.Writer) error {
	return c.pins(ctx, out, "unpin", c.Patterns, c.origin(), (*admin.Client).Unpin)
}

// pins changes the pins of patterns and an origin, if there are some, and prints all.
func (f *operateFlags) pins(ctx context.Context, out io.Writer, command string, patterns []string, of keeper.Origin, change func(*admin.Client, context.Context, []string, keeper.Origin) error) error {
	client, at, err := f.connect(ctx, patterns...)
	if err != nil {
		return f.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	if len(at) == 0 && of != (keeper.Origin{}) {
		at = []string{"."}
	}
	if len(at) > 0 {
		err = change(client, ctx, at, of)
	}
	report := pinsReport{Pins: []string{}}
	var all []keeper.Pin
	if err == nil {
		all, err = client.Pins(ctx)
	}
	for _, p := range all {
		if p.Origin == (keeper.Origin{}) {
			report.Pins = append(report.Pins, p.Pattern)
		} else {
			report.PinsBy = append(report.PinsBy, p)
		}
	}
	switch {
	case err != nil:
		return f.failed(ctx, out, command, nil, err)
	case f.JSON:
		return writeJSON(out, command, false, report)
	case len(all) == 0:
		_, err := fmt.Fprintln(out, "There are no pins.")
		return err
	}
	for _, p := range all {
		line := printable(p.Pattern)
		for _, flag := range []struct{ name, value string }{{"owner", p.Owner}, {"model", p.Model}} {
			if flag.value != "" {
				line += "  --" + flag.name + " " + printable(flag.value)
			}
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
