// Package hosts runs tests on several hosts, which scripts/hosts makes on this machine: each has its own kv3fs daemon, and
// all have their data on one GlusterFS volume or one CephFS.
package hosts

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	// Mount is the 3FS on each host.
	Mount = "/mnt/3fs"
	// patience bounds every command on a host.
	patience = 2 * time.Minute
	// patienceUp bounds the start of all hosts.
	patienceUp = 10 * time.Minute
)

// Hosts are hosts 1 to N.
type Hosts struct {
	t   testing.TB
	dir string
	env []string
}

// Up starts n hosts on a store of scripts/hosts, with further flags of kv3fs serve. They end with the test. KV3FS_HOSTS_TESTS names
// the stores that are tested.
func Up(t testing.TB, store string, n int, flags ...string) *Hosts {
	t.Helper()
	if !slices.Contains(strings.Fields(os.Getenv("KV3FS_HOSTS_TESTS")), store) {
		t.Skipf("make hosts-test runs this: it installs and starts %s", store)
	}
	daemontest.NeedRoot(t)
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	// The bricks want a disk.
	dir, err := os.MkdirTemp("/var/tmp", "kv3fs-hosts-test-")
	if err != nil {
		t.Fatal(err)
	}
	h := &Hosts{t: t, dir: filepath.Join(dir, "hosts"), env: append(os.Environ(), "KV3FS_HOSTS="+filepath.Join(dir, "hosts"), "KV3FS_BINARY="+binary)}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "hosts/log/kv3fs-*"))
			for _, name := range logs {
				text, _ := os.ReadFile(name)
				t.Logf("%s:\n%s", name, text)
			}
		}
		h.Do("down")
		os.RemoveAll(dir)
	})
	h.Do(append([]string{"up", "--store", store, strconv.Itoa(n)}, flags...)...)
	return h
}

// Do runs scripts/hosts.
func (h *Hosts) Do(args ...string) {
	h.t.Helper()
	if out, err := h.command(nil, args...); err != nil {
		h.t.Fatalf("scripts/hosts %v: %v\n%s", args, err, out)
	}
}

func (h *Hosts) command(stdin io.Reader, args ...string) ([]byte, error) {
	bound := patience
	if args[0] == "up" || args[0] == "heal" {
		bound = patienceUp
	}
	// Not the test's context, which has ended when the hosts do.
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../../scripts/hosts", args...)
	cmd.Env, cmd.Stdin = h.env, stdin
	cmd.WaitDelay = 5 * time.Second // its children may have its output open when it has ended
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", err, strings.TrimSpace(failure.String()))
	}
	return out.Bytes(), nil
}

// Run runs a shell command on a host and returns its output.
func (h *Hosts) Run(host int, command string) (string, error) {
	out, err := h.command(nil, "exec", strconv.Itoa(host), "sh", "-c", command)
	return string(out), err
}

// Must is Run for a command that has to succeed.
func (h *Hosts) Must(host int, command string) string {
	h.t.Helper()
	out, err := h.Run(host, command)
	if err != nil {
		h.t.Fatalf("on host %d: %s: %v", host, command, err)
	}
	return out
}

// Log returns what a host's daemons have logged.
func (h *Hosts) Log(host int) string {
	text, err := os.ReadFile(filepath.Join(h.dir, "log", fmt.Sprint("kv3fs-", host)))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// ringVariable makes a test binary do one thing through a ring, see Main.
const ringVariable = "KV3FS_HOSTS_RING"

// RingWrite writes to a file that exists, through a ring of a host.
func (h *Hosts) RingWrite(host int, path string, off int64, b []byte) {
	h.t.Helper()
	if _, err := h.ring(bytes.NewReader(b), host, "write", path, off, len(b)); err != nil {
		h.t.Fatalf("on host %d: write %s: %v", host, path, err)
	}
}

// RingRead reads through a ring of a host.
func (h *Hosts) RingRead(host int, path string, off int64, n int) []byte {
	h.t.Helper()
	b, err := h.ring(nil, host, "read", path, off, n)
	if err != nil {
		h.t.Fatalf("on host %d: read %s: %v", host, path, err)
	}
	return b
}

func (h *Hosts) ring(stdin io.Reader, host int, what, path string, off int64, n int, more ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"exec", strconv.Itoa(host), "env", ringVariable + "=" + what, self, path, strconv.FormatInt(off, 10), strconv.Itoa(n)}
	return h.command(stdin, append(args, more...)...)
}

// Process is this test binary on a host: it does something for each line that it is sent, and says how that went.
type Process struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// begin starts a process until End, for what throughRing knows.
func (h *Hosts) begin(host int, what string, args ...string) *Process {
	h.t.Helper()
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command("../../../scripts/hosts", append([]string{"exec", strconv.Itoa(host), "env", ringVariable + "=" + what, self}, args...)...)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = h.env, os.Stderr, 5*time.Second
	in, err := cmd.StdinPipe()
	out, bad := cmd.StdoutPipe()
	if err := errors.Join(err, bad, cmd.Start()); err != nil {
		h.t.Fatal(err)
	}
	p := &Process{h.t, cmd, in, bufio.NewReader(out)}
	h.t.Cleanup(p.End)
	return p
}

// Ask has the process do something.
func (p *Process) Ask(what string) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		p.t.Fatal(what, err)
	}
	said, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(what, err)
	}
	return strings.TrimSpace(said)
}

// End ends the process.
func (p *Process) End() {
	_ = p.in.Close()
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait() // a second time, too
}

// Held is a file that a process on a host has registered with a ring.
type Held struct {
	*Process
	bytes int
}

// Hold registers a file with a ring of a host until End.
func (h *Hosts) Hold(host int, path string, n int) *Held {
	h.t.Helper()
	d := &Held{h.begin(host, "hold", path, "0", strconv.Itoa(n)), n}
	if b, err := d.Read(); err != nil || len(b) != n {
		h.t.Fatalf("on host %d: hold %s: %d bytes, %v", host, path, len(b), err)
	}
	return d
}

// Read reads the file's first bytes through the ring.
func (d *Held) Read() ([]byte, error) {
	if _, err := io.WriteString(d.in, "read\n"); err != nil {
		return nil, err
	}
	answer, err := d.out.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if said := strings.TrimSpace(answer); said != "ok" {
		return nil, errors.New(said)
	}
	b := make([]byte, d.bytes)
	_, err = io.ReadFull(d.out, b)
	return b, err
}

// hold reads through a ring for each line of standard input.
func hold(ctx context.Context, ring *usrbio.Ring, one usrbio.Request, iov *usrbio.Iov) error {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		all := []usrbio.Request{one}
		switch err := ring.Do(ctx, all); {
		case err != nil:
			return err
		case all[0].Result < 0:
			fmt.Println(syscall.Errno(-all[0].Result))
		case all[0].Result != one.Bytes:
			fmt.Println("short:", all[0].Result)
		default:
			fmt.Println("ok")
			if _, err := os.Stdout.Write(iov.Bytes()[:one.Bytes]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Main is a package's TestMain: in a process that a method of Hosts has started on a host, it does what that wants.
func Main(m *testing.M) int {
	what := os.Getenv(ringVariable)
	if what == "" {
		return daemontest.Main(m)
	}
	if err := throughRing(what, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Watch reads n bytes of a file through one descriptor on a host until they have changed, and returns them. The
// file begun is made there once they have been read for the first time.
func (h *Hosts) Watch(host int, path string, off int64, n int, begun string) ([]byte, error) {
	return h.ring(nil, host, "watch", path, off, n, begun)
}

func watch(path string, off int64, n int, begun string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	first, now := make([]byte, n), make([]byte, n)
	if _, err := f.ReadAt(first, off); err != nil {
		return err
	}
	if err := os.WriteFile(begun, nil, 0o600); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < patience; {
		if _, err := f.ReadAt(now, off); err != nil {
			return err
		}
		if !bytes.Equal(first, now) {
			_, err = os.Stdout.Write(now)
			return err
		}
	}
	return fmt.Errorf("%s: still %q after %v", path, first, patience)
}

// throughRing writes standard input to a file, or a part of a file to standard output.
func throughRing(what string, args []string) (err error) {
	path := args[0]
	switch what {
	case "blocks":
		return serveBlocks(path)
	case "engine":
		return serveEngine(path)
	}
	off, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if what == "watch" {
		return watch(path, off, n, args[3])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := usrbio.Open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(ctx)) }()
	iov, err := m.NewIov(ctx, int64(n), usrbio.IovOptions{})
	if err != nil {
		return err
	}
	ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 1, Write: what == "write"})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	file, err := m.Register(ctx, f)
	if err != nil {
		return err
	}
	if what == "write" {
		if _, err := io.ReadFull(os.Stdin, iov.Bytes()[:n]); err != nil {
			return err
		}
	}
	one := usrbio.Request{File: file, FileOffset: off, Iov: iov, Bytes: int64(n)}
	if what == "hold" {
		return hold(context.Background(), ring, one, iov)
	}
	all := []usrbio.Request{one}
	if err := ring.Do(ctx, all); err != nil {
		return err
	}
	if all[0].Result != int64(n) {
		return fmt.Errorf("%s %d bytes of %s: result %d", what, n, path, all[0].Result)
	}
	if what == "read" {
		_, err = os.Stdout.Write(iov.Bytes()[:n])
	}
	return err
}
