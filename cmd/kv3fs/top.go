package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/admin/top"
)

// topCmd shows a daemon live in a terminal.
type topCmd struct {
	Path    givenPath     `arg:"" optional:"" name:"mount" help:"The daemon's mount or data directory. Default: the only daemon of this host."`
	Every   time.Duration `env:"-" default:"1s" range:"100ms..1h" help:"How often the daemon is asked."`
	Timeout time.Duration `default:"10s" range:"1s..1h" help:"How long to wait for an answer."`
	Once    bool          `env:"-" help:"Print all parts once, and exit."`
	JSON    bool          `name:"json" help:"With --once: print JSON instead of text."`
}

// Help is what "kv3fs top --help" adds to the flags.
func (*topCmd) Help() string {
	return `Run it as root or as the daemon's user.

Keys: tab or right, shift-tab or left: next and last part; 1 to 8: that part; up, down, page up, page down,
home, end: scroll; q or Esc: quit. Colours are off where NO_COLOR is set.`
}

// Validate rejects a stream of reports.
func (c *topCmd) Validate() error {
	if c.JSON && !c.Once {
		return bad("json", "needs --once; for more, ask /api/v1 again and again")
	}
	return nil
}

// topReport is what the command prints as JSON: the answers of the API.
type topReport struct {
	Status   shown[api.Status]   `json:"status"`
	History  shown[api.History]  `json:"history"`
	Hits     shown[api.Hits]     `json:"hits"`
	Usage    shown[api.Usage]    `json:"usage"`
	Keeper   shown[api.Keeping]  `json:"keeper"`
	Curve    shown[api.Curve]    `json:"curve"`
	Clients  shown[api.Clients]  `json:"clients"`
	Pages    shown[api.Pages]    `json:"pages"`
	Hosts    shown[api.Hosts]    `json:"hosts"`
	Findings shown[api.Findings] `json:"findings"`
	Log      shown[api.Log]      `json:"log"`
}

// Run shows it.
func (c *topCmd) Run(ctx context.Context, out io.Writer) error {
	ask, done, err := c.chosen(ctx)
	if err != nil {
		return err
	}
	defer done()
	if c.Once {
		return c.once(ctx, out, ask)
	}
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return fmt.Errorf("this is no terminal that can be used: %w: kv3fs top --once prints without one", err)
	}
	defer screen.Fini()
	top.Run(ctx, screen, top.Options{Ask: ask, Every: c.Every})
	return ctx.Err()
}

// chosen returns what asks the daemon that is chosen.
func (c *topCmd) chosen(ctx context.Context) (_ top.Ask, done func(), err error) {
	daemons, _, err := runningDaemons(ctx, string(c.Path))
	if err != nil {
		return nil, nil, err
	}
	if len(daemons) > 1 {
		var mounts []string
		for _, d := range daemons {
			mounts = append(mounts, printable(d.mount))
		}
		return nil, nil, fmt.Errorf("several daemons run on this host: choose one of %s", strings.Join(mounts, ", "))
	}
	client, err := daemons[0].dial(ctx, c.Timeout)
	if err != nil {
		return nil, nil, err
	}
	return client.Show, client.Close, nil
}

// once prints all that there is.
func (c *topCmd) once(ctx context.Context, out io.Writer, ask top.Ask) error {
	var a top.Answers
	var paths []string
	for _, p := range top.Parts() {
		paths = append(paths, p.Asks()...)
	}
	var found api.Findings
	err := ask(ctx, "findings?wait=5", &found) // the first look takes a moment
	if err == nil {
		err = a.Fetch(ctx, ask, paths...)
	}
	switch {
	case c.JSON && ctx.Err() != nil:
		return cmp.Or(writeJSON(out, "top", true, nil), ctx.Err())
	case err != nil:
		return err
	case c.JSON:
		return writeJSON(out, "top", false, topReport{
			shown[api.Status]{a.Status}, shown[api.History]{a.History}, shown[api.Hits]{a.Hits}, shown[api.Usage]{a.Usage}, shown[api.Keeping]{a.Keeper}, shown[api.Curve]{a.Curve},
			shown[api.Clients]{a.Clients}, shown[api.Pages]{a.Pages}, shown[api.Hosts]{a.Hosts}, shown[api.Findings]{a.Findings}, shown[api.Log]{a.Log},
		})
	}
	text := top.Head(&a.Status).String() + "\n"
	for _, p := range top.Parts() {
		text += "\n== " + p.Title + "\n"
		for _, l := range p.Lines(&a, columns()) {
			text += l.String() + "\n"
		}
	}
	_, err = io.WriteString(out, text)
	return err
}
