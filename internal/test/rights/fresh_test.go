package rights

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// The engines' user can use a new data directory that was made for it, or for everybody, and
// what root changes at the mount's root stays when another daemon serves the directory.
func TestNewDataDirectory(t *testing.T) {
	u := hostile.NewUser(t)
	for flags, want := range map[[2]string]outcome{
		{"--owner", fmt.Sprintf("%d:%d", u.ID, u.ID)}: {},
		{"--mode", "1777"}:                            {},
		{"--mode", "755"}:                             {Errno: unix.EACCES},
	} {
		data := filepath.Join(hostile.NewData(t), "new")
		d := serve(t, data, flags[:]...)
		create := func(name string) outcome {
			return do(t, u, d.Mount, step{Op: "create", Path: filepath.Join(d.Mount, name), N: 0o600})[0]
		}
		if got := create("f"); got != want {
			t.Errorf("%v: %v, want %v", flags, got, want)
		}
		if want.Errno == 0 {
			continue
		}
		if err := unix.Chmod(d.Mount, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
		d.Start(t)
		if got := create("g"); got.Errno != 0 {
			t.Errorf("after chmod of the mount and a restart: %v", got)
		}
	}
}
