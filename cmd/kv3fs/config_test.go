package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// serveWith runs "serve" with a configuration file and a cluster name that the
// daemon refuses, so that its error tells which one counted.
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

// The command line wins over the environment, and that over the file.
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

// What is wrong in a configuration is named, with the file and the cure.
func TestConfigurationErrors(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{"clutser: x", `unknown key "clutser"`},
		{"workers: many", "workers"},
		{"cluster: [a, b]", `"cluster" wants a single value`},
		{"deadline: 5", "deadline"},
		{"io: mmap", "io"},
		{"- just\n- a list", "not a YAML mapping"},
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
	if status := run([]string{"version"}, &out, &errs); status != 0 || !strings.HasPrefix(out.String(), "kv3fs ") {
		t.Errorf("version: %d %s", status, out.String())
	}
}
