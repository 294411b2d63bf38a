package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A data directory gets its mode and owner when nothing is in it, and keeps them from then on.
func TestFreshDataDirectory(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	dir := t.TempDir()
	mode, owner := uint32(0o1770), Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if os.Geteuid() == 0 {
		owner = Owner{UID: 12345, GID: 12346}
	}
	check := func(wantMode uint32) {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Mode&0o7777 != wantMode || (Owner{st.Uid, st.Gid}) != owner {
			t.Errorf("mode %o, owner %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
		}
	}
	f := Fresh{Mode: &mode, Owner: &owner}
	if err := f.apply(log, dir); err != nil {
		t.Fatal(err)
	}
	check(0o1770)
	if err := os.Mkdir(filepath.Join(dir, ".kv3fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.apply(log, dir); err != nil || text.Len() > 0 {
		t.Errorf("%v, %s", err, text.String())
	}
	other := uint32(0o755)
	if err := (Fresh{Mode: &other}).apply(log, dir); err != nil {
		t.Fatal(err)
	}
	check(0o1770)
	if said := text.String(); !strings.Contains(said, "keeps its mode and owner") || !strings.Contains(said, "01770") {
		t.Errorf("the log: %q", said)
	}
}

// The log of a daemon that runs as root says it if engines of other users cannot use the mount,
// and only then.
func TestAdviceOfRootOnlyData(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root serves other users")
	}
	for _, c := range []struct {
		what string
		mode uint32
		make func(dir string) error
		want string // part of the advice; empty: none
	}{
		{"nobody else may enter", 0o700, nil, "only root can use the mount"},
		{"nobody else may create", 0o755, nil, "only root can create files"},
		{"everybody may create", 0o1777, nil, ""},
		{"the group may create", 0o770, nil, ""},
		{"a directory of root's", 0o755, func(dir string) error { return os.Mkdir(filepath.Join(dir, "d"), 0o755) }, "only root can create files"},
		{"a directory of another user's", 0o755, func(dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
				return err
			}
			return os.Chown(filepath.Join(dir, "d"), 12345, 12345)
		}, ""},
		{"another user's", 0o700, func(dir string) error { return os.Chown(dir, 12345, 12345) }, ""},
	} {
		dir := t.TempDir()
		if err := unix.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		if c.make != nil {
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
		}
		var text bytes.Buffer
		adviseRootOnly(slog.New(slog.NewTextHandler(&text, nil)), dir, "/mnt/3fs")
		if said := text.String(); !strings.Contains(said, c.want) || c.want == "" && said != "" {
			t.Errorf("%s: %q, want %q", c.what, said, c.want)
		}
	}
}
