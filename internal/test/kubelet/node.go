package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// limit bounds every wait.
const limit = time.Minute

// Node is a node with a daemon, which has its mount in Mounts, and a plugin.
type Node struct {
	Daemon *daemontest.Daemon
	Dir    string // kubelet's root directory
	Mounts string // the directory that holds the daemon's mount, as the plugin's container has it

	binary string
	flags  []string
	plugin *exec.Cmd
	log    *syncBuffer
	ended  chan struct{}
	conn   *grpc.ClientConn
	pods   int
}

// Start starts a daemon and a plugin with further flags. Both run until the test ends.
func Start(t testing.TB, serve, csi []string) *Node {
	t.Helper()
	return start(t, serve, csi, false)
}

// StartBound is Start where the directories are bound on themselves below a shared mount, as hosts have it. All that is mounted in them is
// then twice in the table of mounts.
func StartBound(t testing.TB, serve, csi []string) *Node {
	t.Helper()
	return start(t, serve, csi, true)
}

func start(t testing.TB, serve, csi []string, bound bool) *Node {
	t.Helper()
	daemontest.NeedMounts(t)
	daemontest.NeedRoot(t)
	top := daemontest.NewDir(t)
	n := &Node{Dir: filepath.Join(top, "kubelet"), Mounts: filepath.Join(top, "mounts"), flags: csi}
	share := func(dir string, alone bool) {
		t.Cleanup(func() { unmountAll(dir) })
		must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		if alone { // and not with the mount that the directory is on, if that is shared
			must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
		}
		must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	}
	if bound {
		share(top, true)
	}
	for _, dir := range []string{n.Dir, n.Mounts} {
		must(t, os.Mkdir(dir, 0o755))
		share(dir, !bound)
	}
	n.Daemon = daemontest.ServeWith(t, daemontest.Options{Mount: filepath.Join(n.Mounts, "3fs"), Flags: append([]string{"--drain", "0s"}, serve...)})
	var err error
	n.binary, err = daemontest.Binary()
	must(t, err)
	t.Cleanup(func() { n.Stop(t) })
	n.Run(t)
	return n
}

// unmountAll unmounts all at and below a directory, what was mounted last first.
func unmountAll(dir string) {
	for left := daemontest.MountsBelow(dir); len(left) > 0; {
		for i := len(left) - 1; i >= 0; i-- {
			_ = unix.Unmount(left[i], unix.MNT_DETACH)
		}
		now := daemontest.MountsBelow(dir)
		if len(now) == len(left) {
			return // the end of the package reports them
		}
		left = now
	}
}

// Run starts the plugin, or starts it again.
func (n *Node) Run(t testing.TB) {
	t.Helper()
	n.plugin = n.Command()
	n.log = &syncBuffer{}
	n.plugin.Stdout, n.plugin.Stderr = n.log, n.log
	must(t, n.plugin.Start())
	n.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait()
	}(n.plugin, n.ended)
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if bytes.Contains(n.log.bytes(), []byte(`msg="serving volumes"`)) {
			break
		}
		select {
		case <-n.ended:
			t.Fatalf("the plugin ended:\n%s", n.Log())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the plugin does not serve:\n%s", n.Log())
		}
	}
	conn, err := grpc.NewClient("unix:"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	n.conn = conn
}

// Command is the command that runs the plugin, in a mount namespace of its own.
func (n *Node) Command() *exec.Cmd {
	args := append([]string{"csi", "--mount", n.Daemon.Mount, "--kubelet", n.Dir, "--node", "node-1", "--admin-listen", "off", "--timeout", limit.String()}, n.flags...)
	// What a container with HostToContainer has.
	script := `mount --make-rslave "$0"; exec "$@"`
	cmd := exec.Command("/bin/sh", append([]string{"-ec", script, n.Mounts, n.binary}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	return cmd
}

// Socket is the plugin's.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "plugins", "kv3fs.io", "csi.sock") }

// State is the directory of the plugin's records.
func (n *Node) State() string { return filepath.Join(n.Dir, "plugins", "kv3fs.io", "state") }

// Log returns what the plugin has printed since it was started last.
func (n *Node) Log() string { return string(n.log.bytes()) }

// Kill ends the plugin as a crash would.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

// Stop ends the plugin in order.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	n.end(syscall.SIGTERM)
	if bytes.Contains(n.log.bytes(), []byte("panic:")) || bytes.Contains(n.log.bytes(), []byte("DATA RACE")) || t.Failed() {
		t.Errorf("the plugin's log:\n%s", n.Log())
	}
}

func (n *Node) end(sig syscall.Signal) {
	if n.conn != nil {
		_ = n.conn.Close()
		n.conn = nil
	}
	_ = n.plugin.Process.Signal(sig)
	select {
	case <-n.ended:
	case <-time.After(limit):
		_ = n.plugin.Process.Kill()
		<-n.ended
	}
}

// PluginNode is the plugin's node service.
func (n *Node) PluginNode() spec.NodeClient { return spec.NewNodeClient(n.conn) }

// Identity is the plugin's identity service.
func (n *Node) Identity() spec.IdentityClient { return spec.NewIdentityClient(n.conn) }

// Volume is what a pod asks for.
type Volume struct {
	ID         string
	Namespace  string // of the pod
	Attributes map[string]string
	ReadOnly   bool
	Group      string // fsGroup
}

// Request is kubelet's for a volume of a new pod.
func (n *Node) Request(t testing.TB, v Volume) *spec.NodePublishVolumeRequest {
	t.Helper()
	n.pods++
	dir := filepath.Join(n.Dir, "pods", "pod-"+strconv.Itoa(n.pods), "volumes", "kubernetes.io~csi", v.ID)
	must(t, os.MkdirAll(dir, 0o750))
	must(t, os.WriteFile(filepath.Join(dir, "vol_data.json"), fmt.Appendf(nil, `{"driverName":"kv3fs.io","volumeHandle":%q}`, v.ID), 0o600))
	said := map[string]string{"csi.storage.k8s.io/pod.namespace": v.Namespace, "csi.storage.k8s.io/pod.name": "pod-" + strconv.Itoa(n.pods), "csi.storage.k8s.io/pod.uid": "pod-" + strconv.Itoa(n.pods), "csi.storage.k8s.io/ephemeral": "true"}
	for name, value := range v.Attributes {
		said[name] = value
	}
	return &spec.NodePublishVolumeRequest{
		VolumeId: v.ID, TargetPath: filepath.Join(dir, "mount"), Readonly: v.ReadOnly, VolumeContext: said,
		VolumeCapability: &spec.VolumeCapability{
			AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{VolumeMountGroup: v.Group}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		},
	}
}

// Publish has the plugin publish a volume for a new pod, and returns its target. As kubelet does, it tries again what takes longer than the plugin
// has patience.
func (n *Node) Publish(t testing.TB, v Volume) (target string) {
	t.Helper()
	r := n.Request(t, v)
	if err := n.retry(t, func(ctx context.Context) error {
		_, err := n.PluginNode().NodePublishVolume(ctx, r)
		return err
	}); err != nil {
		t.Fatalf("publish %+v: %v", v, err)
	}
	return r.GetTargetPath()
}

// Unpublish has it unpublish one, as Publish does.
func (n *Node) Unpublish(t testing.TB, id, target string) {
	t.Helper()
	if err := n.retry(t, func(ctx context.Context) error {
		_, err := n.PluginNode().NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		return err
	}); err != nil {
		t.Fatalf("unpublish %s: %v", id, err)
	}
}

func (n *Node) retry(t testing.TB, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := call(ctx)
		if code := status.Code(err); ctx.Err() != nil || code != codes.Unavailable && code != codes.Aborted {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Dial connects to a socket of the plugin.
func Dial(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// syncBuffer is a buffer that a process writes to.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.text.Bytes())
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Metric returns a line of the plugin's metrics without its name, or "". The plugin needs --admin-listen.
func (n *Node) Metric(t testing.TB, name string) string {
	t.Helper()
	found := regexp.MustCompile(`address=(http://\S+)`).FindSubmatch(n.log.bytes())
	if found == nil {
		t.Fatal("the plugin has no address for metrics")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, string(found[1])+"/metrics", nil)
	must(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// SetFlags changes the plugin's further flags, for the next Run.
func (n *Node) SetFlags(flags ...string) { n.flags = flags }

// AwaitRecovery waits until the plugin has bound so many volumes to another daemon's mount since it was started.
func (n *Node) AwaitRecovery(t testing.TB, volumes int) {
	t.Helper()
	for end := time.Now().Add(limit); bytes.Count(n.log.bytes(), []byte("volume bound to the daemon's new mount")) < volumes; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("fewer than %d volumes were bound to the new mount", volumes)
		}
	}
}
