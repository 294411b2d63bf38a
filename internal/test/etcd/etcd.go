// Package etcd starts real members of etcd for tests: Debian's etcd-server, which scripts/need test installs.
//
// Every set of members has addresses of its own in 127.0.0.0/8, so that members that are restarted find their ports
// free, and packet filters can tell them apart. Data is in memory where there is room: members that wait for a
// disk elect each other for leaders.
package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

const (
	clientPort = 2379
	peerPort   = 2380
	// patience bounds what members need seconds for on a machine with nothing else to do.
	patience = 2 * time.Minute
	// roomBytes is what three members need in memory.
	roomBytes = 1 << 30
)

// Options of Start. The zero value: three members with etcd's defaults.
type Options struct {
	Members    int      // 0: 3
	QuotaBytes int64    // 0: etcd's
	TLS        bool     // members want TLS, and certificates of clients
	Password   string   // "": no users; else that of root, who may do everything
	Flags      []string // for every member

	// Addresses are the members'. nil: of this host's own.
	Addresses []netip.Addr
	// Enter is what runs a member elsewhere, such as in a network namespace: a command line to which the member's is appended. The
	// tests' own clients run here nevertheless, and reach members only if addresses do.
	Enter func(member int) []string
}

// Members are the members 0 to N-1 of one etcd.
type Members struct {
	t       testing.TB
	options Options
	dir     string
	certs   *certificates // nil without TLS
	members []*member
}

type member struct {
	name    string
	address netip.Addr
	mu      sync.Mutex
	run     *run // nil: it does not run
}

// run is one process of a member.
type run struct {
	pid    int
	ended  chan struct{}
	output *output
}

// output keeps the end of what a member says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const mostOutput = 64 << 10

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len() > mostOutput {
		o.text.Next(o.text.Len() - mostOutput/2)
	}
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start starts members, and returns when they take writes. They end with the test.
func Start(t testing.TB, o Options) *Members {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		daemontest.NotTested(t, "etcd is not installed; scripts/need test does that: "+err.Error())
	}
	if o.Members == 0 {
		o.Members = 3
	}
	if o.Addresses == nil {
		o.Addresses = addresses(t, o.Members)
	}
	m := &Members{t: t, options: o, dir: directory(t)}
	if o.TLS {
		m.certs = newCertificates(t, m.dir, o.Addresses)
	}
	for i := range o.Members {
		m.members = append(m.members, &member{name: fmt.Sprintf("member%d", i), address: o.Addresses[i]})
	}
	t.Cleanup(m.end)
	for i := range m.members {
		m.start(i)
	}
	m.AwaitWrites()
	if o.Password != "" {
		m.enableUsers()
	}
	return m
}

// addresses are of this host, and nobody else's.
func addresses(t testing.TB, n int) (all []netip.Addr) {
	t.Helper()
	for {
		a, b := byte(1+rand.IntN(254)), byte(rand.IntN(256)) // not 127.0.x.x, which others use
		for i := range n {
			all = append(all, netip.AddrFrom4([4]byte{127, a, b, byte(1 + i)}))
		}
		l, err := net.Listen("tcp", netip.AddrPortFrom(all[0], peerPort).String())
		if err == nil {
			l.Close()
			return all
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
		all = nil
	}
}

// directory is in memory where there is room.
func directory(t testing.TB) string {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && int64(st.Bavail)*st.Bsize > roomBytes {
		if dir, err := os.MkdirTemp("/dev/shm", "kv3fs-test-etcd-"); err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
	}
	return t.TempDir()
}

func (m *Members) scheme() string {
	if m.certs != nil {
		return "https"
	}
	return "http"
}

func (m *Members) data(i int) string { return filepath.Join(m.dir, m.members[i].name) }

// start starts a member that does not run.
func (m *Members) start(i int) {
	m.t.Helper()
	me := m.members[i]
	peers := make([]string, len(m.members))
	for j, other := range m.members {
		peers[j] = fmt.Sprintf("%s=http://%s:%d", other.name, other.address, peerPort)
	}
	client, peer := fmt.Sprintf("%s://%s:%d", m.scheme(), me.address, clientPort), fmt.Sprintf("http://%s:%d", me.address, peerPort)
	args := []string{
		"etcd", "--name", me.name, "--data-dir", m.data(i), "--initial-cluster", strings.Join(peers, ","),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--log-level", "warn", "--logger", "zap", "--snapshot-count", "2000",
	}
	if m.options.QuotaBytes > 0 {
		args = append(args, "--quota-backend-bytes", strconv.FormatInt(m.options.QuotaBytes, 10))
	}
	if m.certs != nil {
		args = append(args, "--client-cert-auth", "--trusted-ca-file", m.certs.ca, "--cert-file", m.certs.server, "--key-file", m.certs.serverKey)
	}
	args = append(args, m.options.Flags...)
	if m.options.Enter != nil {
		args = append(m.options.Enter(i), args...)
	}
	r, err := begin(args, m.dir)
	if err != nil {
		m.t.Fatalf("start etcd: %v", err)
	}
	me.mu.Lock()
	me.run = r
	me.mu.Unlock()
}

// begin starts a process that ends with this one.
func begin(args []string, dir string) (*run, error) {
	r := &run{ended: make(chan struct{}), output: &output{}}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // ETCD_* would be options
	cmd.Stdout, cmd.Stderr = r.output, r.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // ends with the process, which end waits for
		runtime.LockOSThread() // Pdeathsig is sent when this thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			r.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was killed
			close(r.ended)
		}
	}()
	return r, <-started
}

// end ends all members.
func (m *Members) end() {
	if m.t.Failed() {
		for i, me := range m.members {
			if r := me.running(); r != nil {
				m.t.Logf("member %d says:\n%s", i, r.output)
			}
		}
	}
	for i := range m.members {
		m.Kill(i)
	}
}

func (me *member) running() *run {
	me.mu.Lock()
	defer me.mu.Unlock()
	return me.run
}

// Len returns how many members there are.
func (m *Members) Len() int { return len(m.members) }

// Endpoints returns the members' HOST:PORT.
func (m *Members) Endpoints() (all []string) {
	for _, me := range m.members {
		all = append(all, netip.AddrPortFrom(me.address, clientPort).String())
	}
	return all
}

// Address returns the address of a member, to clients and to the other members.
func (m *Members) Address(i int) netip.Addr { return m.members[i].address }

// TLS returns what clients with a certificate connect with; nil where members want none.
func (m *Members) TLS() *tls.Config {
	if m.certs == nil {
		return nil
	}
	return m.certs.client.Clone()
}

// Files are PEM files for programs that connect with TLS: the authority's certificate, and a client's certificate and key. Server and ServerKey
// are valid for the addresses of the members, as server and as client.
type Files struct{ CA, Cert, Key, Server, ServerKey string }

// Files returns the files of Options.TLS.
func (m *Members) Files() Files {
	return Files{m.certs.ca, m.certs.user, m.certs.userKey, m.certs.server, m.certs.serverKey}
}

// Client returns a client that may do everything, of the given members, or of all. It is closed with the test.
func (m *Members) Client(members ...int) *clientv3.Client {
	m.t.Helper()
	c, err := m.client(members...)
	if err != nil {
		m.t.Fatalf("client of etcd: %v", err)
	}
	m.t.Cleanup(func() { _ = c.Close() }) // its context, which it ends, is its error
	return c
}

func (m *Members) client(members ...int) (*clientv3.Client, error) {
	all := m.Endpoints()
	var urls []string
	for i, e := range all {
		if len(members) == 0 || slices.Contains(members, i) {
			urls = append(urls, m.scheme()+"://"+e)
		}
	}
	config := clientv3.Config{
		Endpoints: urls, TLS: m.TLS(), Logger: zap.NewNop(), DialTimeout: patience,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	}
	if m.options.Password != "" {
		config.Username, config.Password = "root", m.options.Password
	}
	return clientv3.New(config)
}

// signal sends a signal to a member that runs.
func (m *Members) signal(i int, s syscall.Signal) {
	m.t.Helper()
	r := m.members[i].running()
	if r == nil {
		m.t.Fatalf("member %d does not run", i)
	}
	if err := syscall.Kill(r.pid, s); err != nil {
		m.t.Fatalf("signal member %d: %v", i, err)
	}
}

// Stop pauses a member: its connections stay open and say nothing.
func (m *Members) Stop(i int) { m.t.Helper(); m.signal(i, syscall.SIGSTOP) }

// Continue ends a pause.
func (m *Members) Continue(i int) { m.t.Helper(); m.signal(i, syscall.SIGCONT) }

// Kill ends a member at once. One that does not run stays so.
func (m *Members) Kill(i int) {
	me := m.members[i]
	me.mu.Lock()
	defer me.mu.Unlock()
	if me.run == nil {
		return
	}
	_ = syscall.Kill(me.run.pid, syscall.SIGKILL) // it may have ended by itself
	<-me.run.ended
	me.run = nil
}

// Restart starts a member that was killed, or kills it first. It does not wait until it serves.
func (m *Members) Restart(i int) {
	m.t.Helper()
	m.Kill(i)
	m.start(i)
}

// Wipe loses everything that etcd holds, as if all members had been set up anew. Users are gone, too.
func (m *Members) Wipe() {
	m.t.Helper()
	m.offline(func() error {
		for i := range m.members {
			if err := os.RemoveAll(m.data(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Backup keeps everything that etcd holds in a directory, which it returns.
func (m *Members) Backup() string {
	m.t.Helper()
	to := filepath.Join(m.dir, fmt.Sprintf("backup%d", rand.Uint64()))
	m.offline(func() error {
		for i, me := range m.members {
			if err := os.CopyFS(filepath.Join(to, me.name), os.DirFS(m.data(i))); err != nil {
				return err
			}
		}
		return nil
	})
	return to
}

// Restore puts back what Backup kept: etcd knows nothing of what was written since.
func (m *Members) Restore(backup string) {
	m.t.Helper()
	m.offline(func() error {
		for i, me := range m.members {
			err := os.RemoveAll(m.data(i))
			if err == nil {
				err = os.CopyFS(m.data(i), os.DirFS(filepath.Join(backup, me.name)))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// offline does something while no member runs.
func (m *Members) offline(do func() error) {
	m.t.Helper()
	for i := range m.members {
		m.Kill(i)
	}
	if err := do(); err != nil {
		m.t.Fatalf("data of etcd: %v", err)
	}
	for i := range m.members {
		m.start(i)
	}
	m.AwaitWrites()
}

// Await waits until something about etcd holds.
func (m *Members) Await(what string, holds func(ctx context.Context) error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := holds(once)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			m.t.Fatalf("waited %v in vain: %s: %v", patience, what, err)
		}
		for i, me := range m.members {
			if r := me.running(); r != nil {
				select {
				case <-r.ended:
					m.t.Fatalf("member %d has ended:\n%s", i, r.output)
				default:
				}
			}
		}
		time.Sleep(20 * time.Millisecond) // nothing tells
	}
}

// AwaitWrites waits until the members that run take writes.
func (m *Members) AwaitWrites() {
	m.t.Helper()
	var running []int
	for i, me := range m.members {
		if me.running() != nil {
			running = append(running, i)
		}
	}
	var c *clientv3.Client
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	m.Await("etcd takes writes", func(ctx context.Context) (err error) {
		if c == nil {
			if c, err = m.client(running...); err != nil {
				return err
			}
		}
		_, err = c.Delete(ctx, "no such key") // a write that needs no space
		return err
	})
}

// Leader returns which member leads the others.
func (m *Members) Leader() (leader int) {
	m.t.Helper()
	c := m.Client()
	endpoints := m.Endpoints()
	m.Await("a leader among the members", func(ctx context.Context) error {
		for i, e := range endpoints {
			if m.members[i].running() == nil {
				continue
			}
			s, err := c.Status(ctx, m.scheme()+"://"+e)
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				leader = i
				return nil
			}
		}
		return errors.New("none says that it leads")
	})
	return leader
}
