package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/daemon"
	"github.com/kv3fs/kv3fs/internal/logging"
)

// rereader reads a server's configuration again: the same command line and environment, and the configuration file as it is now.
// It knows the values that are in effect.
type rereader struct {
	args  []string
	lines *logging.Log
	texts map[string]string // of the flags in effect, by name
	token string            // of the admin address
}

// newRereader returns one for a server that has been started.
func newRereader(values *flagValues, command *kong.Node, lines *logging.Log, token string) *rereader {
	return &rereader{args: values.args, lines: lines, texts: textsOf(command), token: token}
}

// textsOf returns the values of a command's flags as texts, by their names.
func textsOf(command *kong.Node) map[string]string {
	all := map[string]string{}
	for _, flag := range command.Flags {
		if isKey(flag) {
			all[flag.Name] = yamlText(flag.Target)
		}
	}
	return all
}

// serve reads the configuration of "serve".
func (r *rereader) serve() (daemon.Reload, error) {
	values := &flagValues{args: r.args}
	parser, err := newParser(values, io.Discard, &teller{stderr: io.Discard}, func(bool) context.Context { return context.Background() })
	if err != nil {
		return daemon.Reload{}, err
	}
	kctx, err := parser.Parse(withNegatives(r.args))
	if err != nil {
		return daemon.Reload{}, plain(values.explain(err))
	}
	next, ok := kctx.Selected().Target.Addr().Interface().(*serveCmd)
	if !ok {
		return daemon.Reload{}, errors.New("the command line is not that of serve any more")
	}
	if _, err := next.pageService(slog.New(slog.DiscardHandler)); err != nil {
		return daemon.Reload{}, values.explain(err)
	}
	adminWeb, err := next.Admin.config()
	if err != nil {
		return daemon.Reload{}, values.explain(err)
	}
	if _, err := next.Trace.config(); err != nil {
		return daemon.Reload{}, values.explain(err)
	}
	texts := textsOf(kctx.Selected())
	reload := daemon.Reload{Keeping: next.Keeper.keeping(), Admin: adminWeb, SlowIO: time.Duration(next.SlowIO)}
	for _, flag := range kctx.Selected().Flags {
		from, to := r.texts[flag.Name], texts[flag.Name]
		if !isKey(flag) || from == to {
			continue
		}
		part, why := partOf(flag.Name)
		reload.Settings = append(reload.Settings, daemon.Setting{Name: flag.Name, From: unset(from), To: unset(to), Part: part, Restart: why})
	}
	if adminWeb.Token != r.token && texts["admin-token-file"] == r.texts["admin-token-file"] {
		reload.Settings = append(reload.Settings, daemon.Setting{Name: "admin-token-file", From: "a token", To: "another token", Part: daemon.OfAdmin})
	}
	reload.Commit = func(settings []daemon.Setting) {
		for _, s := range settings {
			switch {
			case s.Part == daemon.Fixed:
				continue
			case s.Name == "admin-token-file":
				r.token = adminWeb.Token
			case s.Name == "log-level":
				r.lines.Level().Set(next.Log.Level.Level)
			case s.Name == "log-format":
				r.lines.SetFormat(next.Log.Format)
			}
			r.texts[s.Name] = texts[s.Name]
		}
	}
	return reload, nil
}

// unset is the text of a value for people: that of an empty one is nothing.
func unset(text string) string {
	if text == `""` || text == "[]" {
		return ""
	}
	return text
}

// partOf returns what of a daemon a flag belongs to, and why it needs a restart if it does.
func partOf(flag string) (daemon.Part, string) {
	switch flag {
	case "log-level", "log-format":
		return daemon.OfLog, ""
	case "slow-io":
		return daemon.OfRings, ""
	case "capacity", "high-watermark", "low-watermark", "eviction-grace":
		return daemon.OfKeeping, ""
	case "admin-token-file", "admin-cert", "admin-key":
		return daemon.OfAdmin, ""
	case "data", "data-must-exist", "data-must-be-mount", "identity", "shared", "mode", "owner", "keeper-lease":
		return daemon.Fixed, "the data directory is open"
	case "mount", "remount", "cluster", "allow-other", "passthrough", "readonly", "block-bytes",
		"attr-timeout", "entry-timeout", "negative-timeout", "symlink-timeout", "drain", "on-term":
		return daemon.Fixed, "clients use the mount as it is"
	case "restart-state":
		return daemon.Fixed, "the state of restarts is open"
	case "io", "checksums", "deadline", "workers":
		return daemon.Fixed, "requests are under way with it"
	case "tp":
		return daemon.Fixed, "the page service is open"
	}
	for prefix, why := range map[string]string{"pages-": "the page service is open", "trace-": "traces are sent already, or nothing is traced", "admin-": "the admin address is open", "limit-": "clients may hold what it allows"} {
		if strings.HasPrefix(flag, prefix) {
			return daemon.Fixed, why
		}
	}
	return daemon.Fixed, ""
}
