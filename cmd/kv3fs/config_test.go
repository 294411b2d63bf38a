package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// serveWith runs "serve" with a configuration file. Tests give it cluster names that the
// daemon refuses, so that its error shows which one took effect.
func serveWith(t *testing.T, config string, flags ...string) (status int, message string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kv3fs.yaml")
	config += "\ndata: " + filepath.Join(dir, "data") + "\nmount: " + filepath.Join(dir, "mnt") + "\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	status = run(append([]string{"serve", "--config", file}, flags...), &out, &errs)
	return status, errs.String()
}

// The command line overrides the environment, which overrides the file.
func TestConfigurationPrecedence(t *testing.T) {
	if status, message := serveWith(t, "cluster: of the file"); status != exitFailed || !strings.Contains(message, "of the file") {
		t.Errorf("file alone: %d %s", status, message)
	}
	t.Setenv("KV3FS_CLUSTER", "of the environment")
	if status, message := serveWith(t, "cluster: of the file"); status != exitFailed || !strings.Contains(message, "of the environment") {
		t.Errorf("file and environment: %d %s", status, message)
	}
	if status, message := serveWith(t, "cluster: of the file", "--cluster", "of the flag"); status != exitFailed || !strings.Contains(message, "of the flag") {
		t.Errorf("file, environment and flag: %d %s", status, message)
	}
}

// A configuration error names the key and the fix.
func TestConfigurationErrors(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{"clutser: x", `unknown key "clutser"`},
		{"workers: many", "workers"},
		{"cluster: [a, b]", `"cluster" must have a single value`},
		{"deadline: 5", "deadline"},
		{"io: mmap", "io"},
		{"- just\n- a list", "not a YAML mapping"},
		{"cluster:", `key "cluster" has no value`},
		{"pages-token-file: null", `key "pages-token-file" has no value`},
		{"cluster: x\n---\ntoken-file: t", "more than one YAML document"},
		{"cluster: x\n...\ntoken-file: t", "more than one YAML document"},
	} {
		status, message := serveWith(t, c.config)
		if status != exitUsage || !strings.Contains(message, c.want) {
			t.Errorf("%q: status %d, %q; want %d and %q", c.config, status, message, exitUsage, c.want)
		}
	}
	var out, errs bytes.Buffer
	if status := run([]string{"serve"}, &out, &errs); status != exitUsage || !strings.Contains(errs.String(), "--data") {
		t.Errorf("nothing given: %d %s", status, errs.String())
	}
}

// A key that is only another command's flag would have no effect, so it is refused, and
// the error names the command's nearest flag.
func TestConfigurationRefusesKeysOfOtherCommands(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"token-file", `unknown key "token-file": serve has pages-token-file`},
		{"listen", `unknown key "listen": serve has pages-listen`},
		{"capacity", `unknown key "capacity"; the keys are the names of the flags of serve: allow-other, `},
		{"config", `unknown key "config"`},
		{"help", `unknown key "help"`},
		{"version", `unknown key "version"`},
	} {
		status, message := serveWith(t, c.key+": true")
		if status != exitUsage || !strings.Contains(message, c.want) {
			t.Errorf("%s: status %d, %q; want %d and %q", c.key, status, message, exitUsage, c.want)
		}
	}
}

// Every command that reads a configuration accepts its own flags as keys, and refuses
// those of all other commands.
func TestConfigurationKeysAreTheCommandsFlags(t *testing.T) {
	app, err := kong.New(&cli{}, kong.Name("kv3fs"), kong.Vars{"engines": ""}, kong.Configuration(yamlConfig))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, leaf := range app.Model.Leaves(false) {
		for _, flag := range leaf.Flags {
			all[flag.Name] = true
		}
	}
	readers := 0
	for _, leaf := range app.Model.Leaves(false) {
		own, reads := map[string]bool{}, false
		for _, flag := range leaf.Flags {
			own[flag.Name] = true
			reads = reads || flag.Target.Type() == reflect.TypeFor[kong.ConfigFlag]()
		}
		if !reads {
			continue
		}
		readers++
		for key := range all {
			file := filepath.Join(t.TempDir(), "kv3fs.yaml")
			if err := os.WriteFile(file, []byte(key+": x"), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			status := run(append(strings.Fields(leaf.Path()), "--config", file), &out, &errs)
			refused := strings.Contains(errs.String(), "unknown key")
			if refused == (own[key] && key != "config") {
				t.Errorf("%s, key %s: %d %s", leaf.Path(), key, status, errs.String())
			}
		}
	}
	if readers == 0 {
		t.Error("no command reads a configuration")
	}
}
