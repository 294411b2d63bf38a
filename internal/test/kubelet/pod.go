package kubelet

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Pod is a process in a mount namespace of its own that has a volume at Path, with mountPropagation HostToContainer.
type Pod struct {
	Path string

	process *exec.Cmd
	in      io.Closer
}

// Pod starts one. It runs until the test ends, or End.
func (n *Node) Pod(t testing.TB, target string) *Pod {
	t.Helper()
	p := &Pod{Path: daemontest.NewDir(t)}
	script := `mount --make-rslave /; mount --rbind "$0" "$1"; mount --make-rslave "$1"; echo ready; exec cat >/dev/null`
	p.process = exec.Command("/bin/sh", "-ec", script, target, p.Path)
	p.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in, err := p.process.StdinPipe()
	must(t, err)
	out, err := p.process.StdoutPipe()
	must(t, err)
	p.in = in
	must(t, p.process.Start())
	t.Cleanup(p.End)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("a pod with %s: %q, %v", target, line, err)
	}
	return p
}

// End ends the pod.
func (p *Pod) End() {
	if p.in != nil {
		p.in.Close()
		_ = p.process.Wait()
		p.in = nil
	}
}

// Command is a command in the pod, as a user. args[0] is looked up outside.
func (p *Pod) Command(ctx context.Context, uid int, args ...string) *exec.Cmd {
	id := strconv.Itoa(uid)
	return exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(p.process.Process.Pid), "-m", "-S", id, "-G", id}, args...)...)
}

// Shell runs a script in the pod, in the volume, as a user, and returns what it prints.
func (p *Pod) Shell(t testing.TB, uid int, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := p.Command(ctx, uid, "/bin/sh", "-ec", `cd "$0"; `+script, p.Path).CombinedOutput()
	return string(out), err
}
