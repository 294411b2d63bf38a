package main

import (
	"reflect"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/manual"
)

type referenceCmd struct {
	Dir string `arg:"" help:"The directory, which is created."`
}

// Run writes the pages.
func (c *referenceCmd) Run(kctx *kong.Context) error {
	return writeFiles(c.Dir, referencePages(kctx.Model.Node))
}

// referencePages returns the pages of docs/reference by their names.
func referencePages(app *kong.Node) map[string]string {
	about := manualAbout()
	return map[string]string{
		"commands.md":      manual.CommandsPage(app, about),
		"configuration.md": manual.ConfigurationPage(app, about, readsFile),
	}
}

// readsFile reports whether a command reads a configuration file.
func readsFile(n *kong.Node) bool {
	return slices.ContainsFunc(n.Flags, func(f *kong.Flag) bool { return f.Target.Type() == reflect.TypeFor[configFile]() })
}
