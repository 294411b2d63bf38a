package conformance

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestModes repeats the cases that move bytes with each setting that changes how they move;
// with -short, with those that change most.
func TestModes(t *testing.T) {
	moving := map[string]func(*testing.T, *world, library){
		"27": readsOneMiB, "30": endOfFile, "31": holeReadsAsZeros, "32": holeForbidden, "33": insideHole, "34": sparseGiB,
		"36": sizeAfterForceFsync, "38": sizeAfterClose, "47": overlappingReads, "50": negativeDepth, "77": unflushedWrite,
		"83": oneBigRead, "R7": exactlyOnce, "R9": oddSizes, "R10": fullResults, "R11": extensionSeen, "R12": readAfterWrite,
		"R23": renames, "R24": unlinkedOpen, "R29": mmapR29,
	}
	for name, args := range map[string]string{
		"buffered": "--io buffered", "direct": "--io direct", "no passthrough": "--passthrough off",
		"one worker": "--workers 1", "shared": "--shared on", "limited": "--capacity 90%", "nothing cached": "--attr-timeout 0 --entry-timeout 0 --negative-timeout 0 --passthrough off",
	} {
		if testing.Short() && name != "direct" && name != "limited" && name != "nothing cached" {
			continue
		}
		if name == "shared" && os.Getenv("KV3FS_SOAK") == "" {
			continue // make hosts-test has it on a file system that is shared
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, daemontest.Options{Flags: strings.Fields(args)})
			for number, fn := range moving {
				t.Run(number, func(t *testing.T) {
					throughBoth(t, w, func(t *testing.T, l library) { fn(t, w, l) })
				})
			}
		})
	}
}

// TestReadonlyDaemon checks that nothing can be changed, not even the mode itself.
func TestReadonlyDaemon(t *testing.T) {
	data := daemontest.NewDir(t) + "/data"
	must(t, os.Mkdir(data, 0o777))
	write(t, data+"/f", pattern(4096, 1))
	w := start(t, daemontest.Options{Data: data, Flags: []string{"--readonly"}})
	throughBoth(t, w, func(t *testing.T, l library) {
		b := l.buffer(4096, 0)
		expect(t, 4096, l.ring(ringOptions{entries: 4}), b, 0, l.open(w.Mount+"/f", "rdonly"), 0, 4096)
	})
	wantErrno(t, "create", os.WriteFile(w.Mount+"/g", nil, 0o644), syscall.EROFS)
	wantErrno(t, "open", errOf(os.OpenFile(w.Mount+"/f", os.O_RDWR, 0)), syscall.EROFS)
	wantErrno(t, "remove", os.Remove(w.Mount+"/f"), syscall.EROFS)
	wantErrno(t, "rename", os.Rename(w.Mount+"/f", w.Mount+"/g"), syscall.EROFS)
	wantErrno(t, "mkdir", os.Mkdir(w.Mount+"/d", 0o755), syscall.EROFS)
	wantErrno(t, "chmod", os.Chmod(w.Mount+"/f", 0o600), syscall.EROFS)
	wantErrno(t, "truncate", os.Truncate(w.Mount+"/f", 0), syscall.EROFS)
	wantErrno(t, "rm-rf", os.Symlink(w.Mount+"/f", w.virtual("rm-rf/x")), syscall.EROFS)
	wantErrno(t, "mv:", os.Symlink("mv:"+w.Mount+"/f", w.Mount+"/g"), syscall.EROFS)
	wantErrno(t, "set-conf", os.Symlink("false", w.virtual("set-conf/usr.readonly")), syscall.EINVAL)
	c := w.tool(t)
	c.ok("open d %s rdonly", w.Mount)
	c.fails(int(syscall.EROFS), "ioctl d 0x4110680F %s", strings.Repeat("00", 272)) // changed: upstream's ioctls ignore the mode
	fileHolds(t, w.Data+"/f", 0, 4096, 1)
}

func errOf(_ *os.File, err error) error { return err }

// TestRemount checks that clients that see the mount at another path may use that path.
func TestRemount(t *testing.T) {
	w := start(t, daemontest.Options{Flags: []string{"--remount", "/container/3fs"}})
	for _, name := range []string{"/a", "/b"} {
		write(t, w.Mount+name, []byte(name))
	}
	must(t, os.Symlink("/container/3fs/a", w.virtual("rm-rf/x")))
	wantGone(t, w.Mount+"/a")
	must(t, os.Symlink("mv:/container/3fs/b", w.Mount+"/c"))
	if got, err := os.ReadFile(w.Mount + "/c"); err != nil || string(got) != "/b" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestClientInContainer checks that the daemon notices when a client exits that is in a
// PID namespace of its own, as in a container.
func TestClientInContainer(t *testing.T) {
	daemontest.NeedRoot(t)
	w := start(t, daemontest.Options{})
	write(t, w.Mount+"/f", pattern(100, 1))
	cmd := exec.Command(usrbioTool(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Credential: &syscall.Credential{Uid: alice, Gid: alice}}
	c := startTool(t, cmd)
	if a := c.ok("pid"); a.kv["pid"] != "1" {
		t.Fatal(a.line)
	}
	c.ok("open f %s/f rdonly", w.Mount)
	c.ok("reg f")
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("thread iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("prep r v r 0 f 0 100 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 100 {
		t.Errorf("%+v", got)
	}
	c.die()
	goneFor(t, w, alice)
}

// TestManyProcesses runs many engines on one daemon.
func TestManyProcesses(t *testing.T) {
	w := start(t, daemontest.Options{})
	path := write(t, w.Mount+"/f", pattern(1<<20, 1))
	var tools []*tool
	for range 40 {
		c := w.tool(t)
		c.ok("open f %s rdonly", path)
		c.ok("reg f")
		c.ok("iovcreate v %s %d 0 -1", w.Mount, 1<<20)
		for i := range 4 {
			c.ok("iorcreate r%d %s 32 r 0 -1", i, w.Mount)
		}
		tools = append(tools, c)
	}
	for round := range 3 {
		for _, c := range tools { // all at once
			for i := range 4 {
				c.send("prep_many r%d v r %d f %d 8192 32 0", i, i*262144, i*262144)
				c.send("submit r%d", i)
				c.send("wait r%d 32 32 30000", i)
			}
			c.send("check v 0 %d 1", 1<<20)
		}
		for n, c := range tools {
			for i := range 4 {
				c.receive("prep_many")
				c.receive("submit")
				if got := c.receive("wait").cqes(t); len(got) != 32 {
					t.Errorf("round %d, process %d, ring %d: %d of 32", round, n, i, len(got))
				}
			}
			if a := c.receive("check"); a.code != 0 {
				t.Errorf("round %d, process %d: %s", round, n, a.line)
			}
		}
	}
}

// TestVersion checks that the binary under test prints its version.
func TestVersion(t *testing.T) {
	out, err := exec.Command(kv3fs(t), "version").CombinedOutput()
	if err != nil || len(out) == 0 {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}
