package daemontest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startLimit = 30 * time.Second
	stopLimit  = 30 * time.Second
)

// Options say how a daemon is started. The zero value starts kv3fs on directories of its
// own.
type Options struct {
	Flags []string // further flags of kv3fs serve
	Env   []string // added to the environment
	Data  string   // data directory; empty: a new one, which every user can write
	Mount string   // mount point; empty: a new one
	UID   uint32   // the user it runs as; 0: the user of the test
	// OwnPIDs gives it PID and mount namespaces of its own, as a container has them: it sees
	// no process of the test, which sees its mount.
	OwnPIDs bool
	Binary  string // the program; empty: Binary's
	// Hold has it run under kv3fs hold, which starts it again whenever it has ended. PID, Signal and Kill then mean that one.
	Hold bool
}

// Daemon is a kv3fs that serves Data at Mount.
type Daemon struct {
	Data, Mount string
	// PrivateMount reports that the mount is in a mount namespace of the daemon's own.
	PrivateMount bool

	options Options
	dir     string // holds the directories that the options leave out
	now     *process
	// mayLeaveMount is set after a process was killed, which therefore could not unmount.
	mayLeaveMount bool
}

// process is one run of a daemon.
type process struct {
	cmd   *exec.Cmd
	log   output
	ended chan struct{} // closed when it has exited and its log is complete
	err   error         // of cmd.Wait; valid once ended is closed
}

// output collects what a daemon prints.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	serving chan struct{} // closed when it says that it serves
	said    bool

	whole int           // the bytes of text that are whole lines
	times int           // how often these say that it serves
	again chan struct{} // closed when times grows
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(b)
	if !o.said && (bytes.Contains(o.text.Bytes(), []byte("msg=serving ")) || bytes.Contains(o.text.Bytes(), []byte(`"msg":"serving"`))) {
		o.said = true
		close(o.serving)
	}
	rest := o.text.Bytes()[o.whole:]
	if end := bytes.LastIndexByte(rest, '\n') + 1; end > 0 {
		o.whole += end
		if n := bytes.Count(rest[:end], []byte("msg=serving ")); n > 0 {
			o.times += n
			close(o.again)
			o.again = make(chan struct{})
		}
	}
	return len(b), nil
}

// served returns how often the log says that a daemon serves, and a channel that is closed when it says so once more.
func (o *output) served() (times int, again <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.times, o.again
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Serve starts a daemon with --drain 1s and further flags. It runs until the test ends.
func Serve(t testing.TB, flags ...string) *Daemon {
	t.Helper()
	return ServeWith(t, Options{Flags: append([]string{"--drain", "1s"}, flags...)})
}

// ServeWith starts a daemon that runs until the test ends. Then it must stop in order;
// see Stop.
func ServeWith(t testing.TB, o Options) *Daemon {
	t.Helper()
	d := prepare(t, o)
	t.Cleanup(func() { removeUnmounted(d.dir) })
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() && d.now != nil {
			t.Logf("the daemon's log:\n%s", d.Log())
		}
	})
	d.Start(t)
	return d
}

var shared struct {
	mu     sync.Mutex
	daemon *Daemon
}

// Shared returns the daemon that all tests of the package share. The first call starts
// it, with these flags; Main stops it.
func Shared(t testing.TB, flags ...string) *Daemon {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.daemon == nil {
		d := prepare(t, Options{Flags: flags})
		d.Start(t)
		shared.daemon = d
	}
	if d := shared.daemon; !d.Alive() {
		t.Fatalf("the shared daemon has exited: %v\n%s", d.Err(), d.Log())
	}
	return shared.daemon
}

func endShared() error {
	if shared.daemon == nil {
		return nil
	}
	if err := shared.daemon.Stop(); err != nil {
		return fmt.Errorf("shared daemon: %w", err)
	}
	return nil
}

// prepare makes the directories that a daemon needs and the options leave out.
func prepare(t testing.TB, o Options) *Daemon {
	t.Helper()
	NeedMounts(t)
	dir, err := newDir()
	if err != nil {
		t.Fatal(err)
	}
	if o.OwnPIDs { // what is mounted there in another mount namespace is seen here, too
		NeedRoot(t)
		if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // else the end of the package reports it
	}
	d := &Daemon{Data: o.Data, Mount: o.Mount, options: o, dir: dir}
	if d.Data == "" {
		d.Data = filepath.Join(dir, "data")
		err = errors.Join(err, makeDir(d.Data, 0o777, o.UID))
	}
	if d.Mount == "" {
		d.Mount = filepath.Join(dir, "mnt")
		err = errors.Join(err, makeDir(d.Mount, 0o755, o.UID))
	}
	if o.Binary == "" {
		var noBinary error
		d.options.Binary, noBinary = Binary()
		err = errors.Join(err, noBinary)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func makeDir(path string, mode os.FileMode, uid uint32) error {
	err := errors.Join(os.Mkdir(path, mode), os.Chmod(path, mode))
	if uid != 0 {
		err = errors.Join(err, os.Chown(path, int(uid), int(uid)))
	}
	return err
}

// Start starts the daemon, or starts it again after Kill, and returns when it serves.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	p := &process{ended: make(chan struct{}), log: output{serving: make(chan struct{}), again: make(chan struct{})}}
	var hold []string
	if d.options.Hold {
		hold = []string{"hold", "--"}
	}
	p.cmd = exec.Command(d.options.Binary, append(hold, append([]string{"serve", "--data", d.Data, "--mount", d.Mount, "--cluster", "stage", "--admin-listen", "off", "--restart-state", "off"}, d.options.Flags...)...)...)
	p.cmd.Dir = "/"
	p.cmd.Env = append(os.Environ(), d.options.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if d.options.UID != 0 {
		d.runAs(t, p.cmd, d.options.UID)
	}
	if d.options.OwnPIDs {
		contain(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	d.now, d.mayLeaveMount = p, false
	select {
	case <-p.log.serving:
	case <-p.ended:
		log := p.log.String()
		if strings.Contains(log, "fusermount") || strings.Contains(log, "/dev/fuse") {
			NotTested(t, "no mount: "+log)
		}
		t.Fatalf("the daemon ended: %v\n%s", p.err, log)
	case <-time.After(startLimit):
		d.Kill()
		t.Fatalf("the daemon does not serve after %v\n%s", startLimit, p.log.String())
	}
}

// runAs makes cmd run as another user. Where the host keeps /dev/fuse for root, the
// daemon gets a device node of its own in a mount namespace of its own.
func (d *Daemon) runAs(t testing.TB, cmd *exec.Cmd, uid uint32) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if info, err := os.Stat("/dev/fuse"); err != nil || info.Mode()&0o006 == 0o006 {
		return
	}
	for _, name := range []string{"setpriv", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			NotTested(t, "a mount without root: /dev/fuse is root's, and there is no "+name)
		}
	}
	node := filepath.Join(d.dir, "fuse")
	if err := errors.Join(unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(10, 229))), os.Chmod(node, 0o666)); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`mount --bind %s /dev/fuse; exec setpriv --reuid=%d --regid=%d --clear-groups "$0" "$@"`, node, uid, uid)
	args := append([]string{"/bin/sh", "-ec", script, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Args = args[0], args
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	d.PrivateMount = true
}

// contain makes cmd run in namespaces of its own.
func contain(cmd *exec.Cmd) {
	const script = `mount --make-private /proc; mount -t proc proc /proc; exec "$0" "$@"`
	args := append([]string{"/bin/sh", "-ec", script, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.Args = args[0], args
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
}

// Served returns how often a daemon has begun to serve since Start: with Options.Hold, there may be many one after the other.
func (d *Daemon) Served() int {
	times, _ := d.now.log.served()
	return times
}

// AwaitServed returns when daemons have begun to serve so often since Start.
func (d *Daemon) AwaitServed(t testing.TB, times int) {
	t.Helper()
	limit := time.NewTimer(2 * startLimit)
	defer limit.Stop()
	for {
		n, again := d.now.log.served()
		if n >= times {
			return
		}
		select {
		case <-again:
		case <-d.now.ended:
			t.Fatalf("the daemon ended: %v\n%s", d.now.err, d.Log())
		case <-limit.C:
			t.Fatalf("daemons have begun to serve %d times, not %d\n%s", n, times, d.Log())
		}
	}
}

// Server returns the process id of the one that has begun to serve last, as the log says.
func (d *Daemon) Server(t testing.TB) int {
	t.Helper()
	all := servingPID.FindAllStringSubmatch(d.Log(), -1)
	if len(all) == 0 {
		t.Fatalf("nothing serves\n%s", d.Log())
	}
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

var servingPID = regexp.MustCompile(`msg=serving .* pid=(\d+)`)

// PID returns the process id of the daemon.
func (d *Daemon) PID() int { return d.now.cmd.Process.Pid }

// Log returns what the daemon has printed since it was started last.
func (d *Daemon) Log() string { return d.now.log.String() }

// Ended returns a channel that is closed when the daemon has exited.
func (d *Daemon) Ended() <-chan struct{} { return d.now.ended }

// Err waits until the daemon exits and returns the error of exec.Cmd.Wait: nil for exit
// status 0.
func (d *Daemon) Err() error {
	<-d.now.ended
	return d.now.err
}

// Alive reports whether the daemon runs.
func (d *Daemon) Alive() bool {
	select {
	case <-d.now.ended:
		return false
	default:
		return true
	}
}

// SetEnv changes what is added to the environment of the next Start.
func (d *Daemon) SetEnv(env ...string) { d.options.Env = env }

// Held reports whether the daemon runs under kv3fs hold.
func (d *Daemon) Held() bool { return d.options.Hold }

// Unhold has the next Start do without Options.Hold.
func (d *Daemon) Unhold() { d.options.Hold = false }

// Signal sends a signal and does not wait for its effect.
func (d *Daemon) Signal(sig os.Signal) error { return d.now.cmd.Process.Signal(sig) }

// Kill ends the daemon as a crash would. Its mount stays, and answers nothing.
func (d *Daemon) Kill() {
	d.mayLeaveMount = true
	_ = d.now.cmd.Process.Kill() // it may have exited
	select {
	case <-d.now.ended:
	case <-time.After(stopLimit): // it hangs in the kernel, where even SIGKILL does not end it
	}
}

// Stop ends the daemon with SIGTERM, unless it has exited already. It returns an error if
// the daemon does not exit, if it leaves its mount although it was not killed, or if its
// log has a panic or a data race.
func (d *Daemon) Stop() error {
	if d.now == nil {
		return nil
	}
	if d.Alive() {
		_ = d.Signal(syscall.SIGCONT) // it may be frozen
		_ = d.Signal(syscall.SIGTERM)
		select {
		case <-d.now.ended:
		case <-time.After(stopLimit):
			d.Kill()
			_ = unix.Unmount(d.Mount, unix.MNT_DETACH)
			return fmt.Errorf("the daemon did not end within %v of SIGTERM\n%s", stopLimit, d.Log())
		}
	}
	left := MountsBelow(d.Mount)
	for range left {
		_ = unix.Unmount(d.Mount, unix.MNT_DETACH)
	}
	log := d.Log()
	for _, bad := range []string{"panic:", "fatal error:", "DATA RACE", "SIGSEGV"} {
		if strings.Contains(log, bad) {
			return fmt.Errorf("the daemon's log has %q:\n%s", bad, log)
		}
	}
	if len(left) > 0 && !d.mayLeaveMount {
		return fmt.Errorf("the daemon left mounts: %v\n%s", left, log)
	}
	return nil
}

// Freeze stops the daemon with SIGSTOP until Thaw or the end of the test. It returns once
// none of its threads runs.
func (d *Daemon) Freeze(t testing.TB) {
	t.Helper()
	p := d.now.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// This cleanup runs first: closing a file on the mount waits for the daemon.
	t.Cleanup(func() { p.Signal(syscall.SIGCONT) })
	if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

// Thaw lets a frozen daemon continue.
func (d *Daemon) Thaw(t testing.TB) {
	t.Helper()
	if err := d.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// CutOff aborts the connection of the mount, as umount -f does: the daemon gets no
// more requests, and its clients get errors. The mount stays while a file on it is open.
func (d *Daemon) CutOff() {
	d.mayLeaveMount = true
	_ = unix.Unmount(d.Mount, unix.MNT_FORCE) // cuts off even if it returns EBUSY
}

// Supplant starts another daemon at the same mount point, with its own data. The first
// one stays as it is, perhaps frozen, and is killed when the test ends.
func (d *Daemon) Supplant(t testing.TB) {
	t.Helper()
	first := d.now
	t.Cleanup(func() {
		first.cmd.Process.Kill()
		<-first.ended
	})
	d.Data = NewDir(t)
	d.Start(t)
	d.mayLeaveMount = true
}

// Empty removes everything on the mount, for the next test.
func (d *Daemon) Empty(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(d.Mount)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "3fs-virt" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.Mount, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
