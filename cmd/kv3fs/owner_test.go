package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

func TestFreshFlags(t *testing.T) {
	for _, c := range []struct {
		flags freshFlags
		mode  int64 // -1: none
		owner daemon.Owner
		err   string // part of it
	}{
		{freshFlags{}, -1, daemon.Owner{}, ""},
		{freshFlags{Mode: "1777"}, 0o1777, daemon.Owner{}, ""},
		{freshFlags{Mode: "0750", Owner: "12345:12346"}, 0o750, daemon.Owner{UID: 12345, GID: 12346}, ""},
		{freshFlags{Owner: "root"}, -1, daemon.Owner{}, ""},
		{freshFlags{Owner: "root:7"}, -1, daemon.Owner{GID: 7}, ""},
		{freshFlags{Owner: "0:root"}, -1, daemon.Owner{}, ""},
		{freshFlags{Mode: "rwx"}, -1, daemon.Owner{}, `--mode: "rwx" is no mode`},
		{freshFlags{Mode: "17777"}, -1, daemon.Owner{}, "octal"},
		{freshFlags{Mode: "789"}, -1, daemon.Owner{}, "octal"},
		{freshFlags{Owner: "no such user"}, -1, daemon.Owner{}, `no user "no such user"`},
		{freshFlags{Owner: "987654321"}, -1, daemon.Owner{}, "987654321:987654321"},
		{freshFlags{Owner: "root:no such group"}, -1, daemon.Owner{}, "no group"},
		{freshFlags{Owner: "4294967295:1"}, -1, daemon.Owner{}, "no user"},
		{freshFlags{Owner: ":1"}, -1, daemon.Owner{}, "no user"},
	} {
		got, err := c.flags.fresh()
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: error %v, want one with %q", c.flags, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.flags, err)
			continue
		}
		if c.mode < 0 && got.Mode != nil || c.mode >= 0 && (got.Mode == nil || *got.Mode != uint32(c.mode)) {
			t.Errorf("%+v: mode %v", c.flags, got.Mode)
		}
		if (got.Owner != nil) != (c.flags.Owner != "") || got.Owner != nil && *got.Owner != c.owner {
			t.Errorf("%+v: owner %v", c.flags, got.Owner)
		}
	}
}

// A mistake in either names where it was made.
func TestFreshFlagsInAFile(t *testing.T) {
	for text, want := range map[string]string{
		"mode: rwx\n":               ":3: mode: ",
		"\nowner: no-such-user:1\n": ":4: owner: ",
	} {
		config := filepath.Join(t.TempDir(), "kv3fs.yaml")
		if err := os.WriteFile(config, []byte("data: /srv/data\nmount: /mnt/3fs\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, out, errs := usage("serve", "--check", "--config", config); status != exitUsage || out != "" || !strings.Contains(errs, config+want) {
			t.Errorf("status %d: %s%s; want %s", status, out, errs, want)
		}
	}
}

// Neither of data directory and mount point may be within the other.
func TestNestedDirectories(t *testing.T) {
	for _, c := range []struct {
		data, mount string
		want        string // part of the error; "": none
	}{
		{"/srv/a", "/srv/b", ""},
		{"/srv/a", "/srv/ab", ""},
		{"/srv/a", "/srv/a", "--data: "},
		{"/mnt/3fs/data", "/mnt/3fs", "--data: "},
		{"/mnt/x/../3fs/data", "/mnt/3fs/", "--data: "},
		{"/srv", "/srv/mnt", "--mount: "},
	} {
		status, _, errs := usage("serve", "--check", "--data", c.data, "--mount", c.mount)
		if c.want == "" && status != 0 || c.want != "" && (status != exitUsage || !strings.Contains(errs, c.want)) {
			t.Errorf("%+v: status %d: %s", c, status, errs)
		}
	}
}
