package controldir_test

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Case 67: which orders rm-rf accepts and which it refuses.
func TestRmRf(t *testing.T) {
	w := newWorld(settings.Defaults())
	for _, step := range []struct {
		target, rel string
		want        syscall.Errno
	}{
		{"d/sub", "", syscall.EINVAL},              // relative
		{"/tmp/d", "", syscall.EINVAL},             // off the mount
		{"/mnt/3fs2/d", "", syscall.EINVAL},        // a prefix of the string, not of the path
		{"/mnt/3fs/d/../../d", "", syscall.EINVAL}, // off the mount once it is cleaned
		{"/mnt/3fs", "", syscall.EINVAL},           // the root itself
		{"/mnt/3fs/3fs-virt/iovs", "", syscall.EPERM},
		{"/mnt/3fs/./d//sub/", "d/sub", 0},
		{"/data/d", "d", 0},
	} {
		rel, errno := w.RemoveTarget(alice(), step.target)
		wantErrno(t, step.target, errno, step.want)
		if rel != step.rel {
			t.Errorf("%s: %q", step.target, rel)
		}
	}
	_, errno := w.Lookup(alice(), wire.InoRmRf, "any")
	wantErrno(t, "lookup", errno, syscall.ENOENT)
}

func TestRelPath(t *testing.T) {
	nested := controldir.New(nil, nil, controldir.Options{MountPoint: "/mnt/3fs", RemountPrefix: "/mnt/3fs/tenant"})
	atRoot := controldir.New(nil, nil, controldir.Options{MountPoint: "/"})
	for _, p := range []struct {
		dir       *controldir.Dir
		abs, want string
		errno     syscall.Errno
	}{
		{nested, "/mnt/3fs/a/b", "a/b", 0},
		{nested, "/mnt/3fs/tenant/a", "a", 0},
		{nested, "/mnt/3fs/tenants/a", "tenants/a", 0},
		{nested, "/mnt/3fs/tenant/", "", syscall.EINVAL},
		{nested, "/mnt/3fs/3fs-virt", "", syscall.EPERM},
		{nested, "/mnt/3fs/x/../3fs-virt/iovs", "", syscall.EPERM},
		{nested, "/mnt/3fs/3fs-virtual", "3fs-virtual", 0},
		{nested, "", "", syscall.EINVAL},
		{nested, "mnt/3fs/a", "", syscall.EINVAL},
		{atRoot, "/a", "a", 0},
		{atRoot, "/..", "", syscall.EINVAL},
	} {
		rel, errno := p.dir.RelPath(p.abs)
		if rel != p.want || errno != p.errno {
			t.Errorf("%q: %q, %v; want %q, %v", p.abs, rel, errno, p.want, p.errno)
		}
	}
}

// running starts a process with these arguments and returns its id.
func running(t *testing.T, argv ...string) uint32 {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: argv, Env: append(os.Environ(), stayEnv+"=1")}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill() // under the race detector its own exit takes a second
		cmd.Wait()
	})
	io.Copy(io.Discard, stdout)
	return uint32(cmd.Process.Pid)
}

// Case 68: an ln that names something by a relative path is refused.
func TestCheckRmRf(t *testing.T) {
	const d, rmrf = "/mnt/3fs/d", "/mnt/3fs/3fs-virt/rm-rf/"
	for _, run := range []struct {
		what string
		argv []string
		want syscall.Errno
	}{
		{"spelled out", []string{"ln", "-s", d, rmrf + "x"}, 0},
		{"case 68", []string{"ln", "-s", d, "x"}, syscall.EINVAL},
		{"case 68 by another name", []string{"/usr/bin/ln", "-s", d, "x"}, syscall.EINVAL},
		{"case 68 by a third name", []string{"/bin/ln", "-s", d, "x"}, syscall.EINVAL},
		{"several targets, one off the mount", []string{"ln", "-s", d, "/etc", rmrf}, syscall.EINVAL},
		{"several targets", []string{"ln", "-s", d, "/data/e", rmrf}, 0},
		{"directory by option", []string{"ln", "-s", "-t", rmrf, d}, 0},
		{"the operand after an option is exempt", []string{"ln", "-s", "d", rmrf + "x"}, 0},
		{"an empty operand", []string{"ln", "-s", d, ""}, syscall.EINVAL},
		{"nothing but itself", []string{"ln"}, 0},
		{"another program", []string{"python3", "-s", d, "x"}, 0},
		{"an ln elsewhere", []string{"/opt/ln", "-s", d, "x"}, 0},
	} {
		t.Run(run.what, func(t *testing.T) {
			w := newWorld(settings.Defaults())
			c := alice()
			c.PID = running(t, run.argv...)
			_, errno := w.RemoveTarget(c, d)
			wantErrno(t, "rm-rf", errno, run.want)
		})
	}
	t.Run("turned off", func(t *testing.T) {
		o := settings.Defaults()
		o.CheckRmRf = false
		w := newWorld(o)
		c := cred.Caller{UID: alice().UID, PID: running(t, "ln", "-s", d, "x")}
		_, errno := w.RemoveTarget(c, d)
		wantErrno(t, "rm-rf", errno, 0)
	})
}
