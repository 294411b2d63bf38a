package main

import (
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/manual"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

type referenceCmd struct {
	Dir string `arg:"" help:"The directory, which is created."`
}

// Run writes the pages.
func (c *referenceCmd) Run(kctx *kong.Context) error {
	pages, err := referencePages(kctx.Model.Node)
	if err != nil {
		return err
	}
	return writeFiles(c.Dir, pages)
}

// referencePages returns the pages of docs/reference by their names.
func referencePages(app *kong.Node) (map[string]string, error) {
	about := manualAbout()
	pages := map[string]string{
		"commands.md":      manual.CommandsPage(app, about),
		"configuration.md": manual.ConfigurationPage(app, about, readsFile),
	}
	all, err := daemon.Metrics()
	if err != nil {
		return nil, err
	}
	var metrics []manual.Metric
	for _, m := range all {
		metrics = append(metrics, manual.Metric(m))
	}
	pages["metrics.md"] = manual.MetricsPage(metrics)
	var statuses []manual.Status
	for _, s := range httpserver.Statuses() {
		statuses = append(statuses, manual.Status{Code: s.Status, Meaning: s.Meaning})
	}
	var rings []manual.Errno
	for _, e := range ringserver.Errnos() {
		rings = append(rings, manual.Errno{Name: unix.ErrnoName(e.Errno), Meaning: e.Meaning})
	}
	if pages["errors.md"], err = manual.ErrorsPage(about, rings, statuses, api.OpenAPI()); err != nil {
		return nil, err
	}
	pages["api.md"], err = manual.APIPage(api.OpenAPI())
	return pages, err
}

// readsFile reports whether a command reads a configuration file.
func readsFile(n *kong.Node) bool {
	return slices.ContainsFunc(n.Flags, func(f *kong.Flag) bool { return f.Target.Type() == reflect.TypeFor[configFile]() })
}
