package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// usage runs a command line in this process.
func usage(args ...string) (status int, out, errs string) {
	var stdout, stderr bytes.Buffer
	status = run(args, &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// The hint after an error names the typed command, as far as it exists.
func TestHintNamesTheCommand(t *testing.T) {
	app, err := newParser(&flagValues{}, io.Discard, &teller{stderr: io.Discard}, func(bool) context.Context { return t.Context() })
	if err != nil {
		t.Fatal(err)
	}
	err = kong.Visit(app.Model, func(node kong.Visitable, next kong.Next) error {
		command, ok := node.(*kong.Node)
		if !ok || command.Hidden || command.Name == "help" {
			return nil
		}
		typed := strings.Fields(command.Path())
		want := "Try \"" + strings.Join(append([]string{"kv3fs"}, typed...), " ") + " --help\".\n"
		for _, wrong := range []string{"--nonsense", "nonsense"} {
			status, out, errs := usage(append(typed, wrong)...)
			if status != exitUsage || !strings.HasPrefix(errs, "kv3fs: ") || !strings.HasSuffix(errs, "\n"+want) || out != "" {
				t.Errorf("%v %s: status %d\n%s; want %s", typed, wrong, status, errs, want)
			}
		}
		return next(nil)
	})
	if err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ args, want string }{
		{"", `Try "kv3fs --help".`},
		{"pages", `Try "kv3fs pages --help".`},
		{"serve", `Try "kv3fs serve --help".`},
		{"bench ring --depth x", `Try "kv3fs bench ring --help".`},
		{"plan --gpu H100", `Try "kv3fs plan --help".`},
		{"doctor --engine nonsense", `Try "kv3fs doctor --help".`},
		{"engine-config nonsense", `Try "kv3fs engine-config --help".`},
		{"help nonsense", `Try "kv3fs --help".`},
		{"probe", `Try "kv3fs --help".`},
	} {
		if status, _, errs := usage(strings.Fields(c.args)...); status != exitUsage || !strings.HasSuffix(errs, "\n"+c.want+"\n") {
			t.Errorf("kv3fs %s: %d %s; want %s", c.args, status, errs, c.want)
		}
	}
}

// "help COMMAND" shows the same as "COMMAND --help".
func TestHelpCommand(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"help", "Usage: kv3fs <command>"},
		{"help serve", "Usage: kv3fs serve "},
		{"help pages", "Usage: kv3fs pages <command>"},
		{"help pages stat", "Usage: kv3fs pages stat "},
		{"help help", "Usage: kv3fs help "},
	} {
		if status, out, errs := usage(strings.Fields(c.args)...); status != 0 || !strings.HasPrefix(out, c.want) || errs != "" {
			t.Errorf("kv3fs %s: %d %s%s; want %s", c.args, status, out, errs, c.want)
		}
	}
}
