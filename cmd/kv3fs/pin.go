package main

import (
	"context"
	"fmt"
	"io"
)

// pinCmd keeps files whatever room is needed.
type pinCmd struct {
	operateFlags
	Patterns []string `arg:"" optional:"" name:"pattern" help:"Files, directories (all that is and will be below) or patterns such as '/mnt/3fs/models/*.data', quoted. Default: list the pins."`
}

// unpinCmd ends pins.
type unpinCmd struct {
	operateFlags
	Patterns []string `arg:"" name:"pattern" help:"Patterns, as they were given to pin, or as pin lists them with --data or --mount."`
}

// pinsReport is what both print as JSON.
type pinsReport struct {
	Pins []string `json:"pins"`
}

// Run pins them, or lists pins.
func (c *pinCmd) Run(ctx context.Context, out io.Writer) error {
	return c.pins(ctx, out, "pin", true, c.Patterns)
}

// Run ends the pins.
func (c *unpinCmd) Run(ctx context.Context, out io.Writer) error {
	return c.pins(ctx, out, "unpin", false, c.Patterns)
}

func (f *operateFlags) pins(ctx context.Context, out io.Writer, command string, pin bool, patterns []string) error {
	client, at, err := f.connect(ctx, patterns...)
	if err != nil {
		return f.failed(ctx, out, command, nil, err)
	}
	defer client.Close()
	switch {
	case len(at) == 0: // they are listed
	case pin:
		err = client.Pin(ctx, at)
	default:
		err = client.Unpin(ctx, at)
	}
	var report pinsReport
	if err == nil {
		report.Pins, err = client.Pins(ctx)
	}
	switch {
	case err != nil:
		return f.failed(ctx, out, command, nil, err)
	case f.JSON:
		return writeJSON(out, command, false, report)
	case len(report.Pins) == 0:
		_, err := fmt.Fprintln(out, "There are no pins.")
		return err
	}
	for _, p := range report.Pins {
		if _, err := fmt.Fprintln(out, printable(p)); err != nil {
			return err
		}
	}
	return nil
}
