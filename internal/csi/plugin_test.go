package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/kubelet"
)

// patience bounds every wait for what has to happen by itself.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// inPod runs a script that must succeed.
func inPod(t *testing.T, p *kubelet.Pod, uid int, script string) string {
	t.Helper()
	out, err := p.Shell(t, uid, script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(out)
}

// A pod without privileges has the part of the cache that it asked for, nothing else is in sight, and its client of rings finds the mount
// there.
func TestPodHasItsPart(t *testing.T) {
	n := kubelet.Start(t, nil, nil)
	must(t, os.WriteFile(filepath.Join(n.Daemon.Data, "others"), nil, 0o644))
	target := n.Publish(t, kubelet.Volume{ID: "v", Namespace: "a", Attributes: map[string]string{"subDirectory": "teams/a"}, Group: "2000"})
	p := n.Pod(t, target)

	if fi, err := os.Stat(filepath.Join(n.Daemon.Data, "teams/a")); err != nil || fi.Mode().Perm() != 0o770 || fi.Mode()&os.ModeSetgid == 0 || fi.Sys().(*syscall.Stat_t).Gid != 2000 {
		t.Errorf("the directory of fsGroup 2000: %v, %v", fi, err)
	}
	if got := inPod(t, p, 2000, "ls; echo x >f; stat -c %g f"); got != "3fs-virt\n2000" {
		t.Errorf("in the pod: %q", got)
	}
	if out, err := p.Shell(t, 3000, "ls"); err == nil {
		t.Errorf("another group's process sees %q", out)
	}
	// The names in the control directory lead every user to another node. Nobody's look there may take it from the pod.
	for _, uid := range []int{0, 3000, 2000} {
		out, err := p.Command(t.Context(), uid, "ls", n.Daemon.Mount+"/3fs-virt/iovs").CombinedOutput()
		must(t, err)
		if !strings.Contains(string(out), "submit-ios") {
			t.Errorf("%d sees %s", uid, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	self, err := os.Executable()
	must(t, err)
	runnable := filepath.Join(daemontest.NewDir(t), "client")
	text, err := os.ReadFile(self)
	must(t, err, os.WriteFile(runnable, text, 0o755))
	client := p.Command(ctx, 2000, runnable)
	client.Env = append(os.Environ(), ringEnv+"="+p.Path)
	if out, err := client.CombinedOutput(); err != nil || string(out) != "mount "+p.Path+"\n" {
		t.Errorf("client of rings: %v, %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(n.Daemon.Data, "teams/a/block")); err != nil || len(text) != 64<<10 {
		t.Errorf("what it wrote: %d bytes, %v", len(text), err)
	}

	p.End()
	n.Unpublish(t, "v", target)
	n.Unpublish(t, "v", target) // again
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is left: %v", err)
	}
	if left, _ := os.ReadDir(n.State()); len(left) != 0 {
		t.Errorf("records are left: %v", left)
	}
	if got := daemontest.MountsBelow(n.Dir + "/pods"); len(got) > 0 {
		t.Errorf("mounts are left: %v", got)
	}
}

// A read-only volume refuses every change, in the control directory, too.
func TestReadOnly(t *testing.T) {
	n := kubelet.Start(t, nil, nil)
	must(t, os.MkdirAll(filepath.Join(n.Daemon.Data, "models"), 0o777))
	must(t, os.WriteFile(filepath.Join(n.Daemon.Data, "models/m"), []byte("weights"), 0o666))
	for i, v := range []kubelet.Volume{
		{ID: "attribute", Attributes: map[string]string{"subDirectory": "models", "readOnly": "true"}},
		{ID: "source", Attributes: map[string]string{"subDirectory": "models"}, ReadOnly: true},
		{ID: "whole", ReadOnly: true},
	} {
		target := n.Publish(t, v)
		p := n.Pod(t, target)
		file := []string{"m", "m", "models/m"}[i]
		if got := inPod(t, p, 0, "cat "+file); got != "weights" {
			t.Errorf("%s: %q", v.ID, got)
		}
		for _, script := range []string{"echo x >" + file, "rm " + file, "touch new", "ln -s /dev/shm/x 3fs-virt/iovs/x", "ln -s x 3fs-virt/rm-rf/x", "mount -o remount,rw . 2>/dev/null; mkdir new"} {
			if out, err := p.Shell(t, 0, script); err == nil && !strings.Contains(script, "remount") {
				t.Errorf("%s: %s: %s", v.ID, script, out)
			}
		}
	}
	_, err := n.PluginNode().NodePublishVolume(t.Context(), n.Request(t, kubelet.Volume{ID: "new", Attributes: map[string]string{"subDirectory": "not/there", "readOnly": "true"}}))
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "publish it writable first") {
		t.Error(err)
	}
}

// stats returns those of a volume.
func stats(t *testing.T, n *kubelet.Node, id, target string) *spec.NodeGetVolumeStatsResponse {
	t.Helper()
	got, err := n.PluginNode().NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
	must(t, err)
	return got
}

// A daemon that was killed and started again is back under the pods that run, however often: the number of mounts does not grow. Volumes and
// their statistics say what is wrong meanwhile.
func TestDaemonIsReplacedUnderPods(t *testing.T) {
	for name, start := range map[string]func(testing.TB, []string, []string) *kubelet.Node{"Start": kubelet.Start, "StartBound": kubelet.StartBound} {
		t.Run(name, func(t *testing.T) { daemonIsReplaced(t, start(t, nil, []string{"--admin-listen", "127.0.0.1:0"})) })
	}
}

func daemonIsReplaced(t *testing.T, n *kubelet.Node) {
	type volume struct {
		id, target string
		pod        *kubelet.Pod
	}
	var all []volume
	for _, v := range []kubelet.Volume{{ID: "part", Attributes: map[string]string{"subDirectory": "a/b"}}, {ID: "all"}, {ID: "look", ReadOnly: true}} {
		target := n.Publish(t, v)
		all = append(all, volume{v.ID, target, n.Pod(t, target)})
	}
	must(t, os.WriteFile(filepath.Join(n.Daemon.Data, "f"), []byte("1"), 0o644), os.WriteFile(filepath.Join(n.Daemon.Data, "a/b/f"), []byte("1"), 0o644))
	for round := range 3 {
		n.Daemon.Kill()
		for _, v := range all {
			if out, err := v.pod.Shell(t, 0, "cat f"); err == nil {
				t.Fatalf("%s: a dead mount answers %q", v.id, out)
			}
			if c := stats(t, n, v.id, v.target).GetVolumeCondition(); !c.GetAbnormal() || !strings.HasPrefix(c.GetMessage(), "dead: ") || !strings.Contains(c.GetMessage(), "kv3fs serve") {
				t.Errorf("%s: %v", v.id, c)
			}
		}
		_, err := n.PluginNode().NodePublishVolume(t.Context(), n.Request(t, kubelet.Volume{ID: "late"}))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "dead") {
			t.Errorf("a volume of a dead mount: %v", err)
		}
		if got := n.Metric(t, `kv3fs_csi_volumes{state="dead"}`); got != "3" {
			t.Errorf("%s dead volumes", got)
		}
		if round == 1 { // the plugin is down meanwhile, too
			n.Kill()
		}
		n.Daemon.Start(t)
		if round == 1 {
			n.Run(t)
		}
		for _, v := range all {
			eventually(t, v.id+" is back in its pod", func() bool {
				out, err := v.pod.Shell(t, 0, "cat f; ls -d 3fs-virt/iovs")
				return err == nil && out == "13fs-virt/iovs\n"
			})
			if _, err := v.pod.Shell(t, 0, "echo x >g"); (err == nil) != (v.id != "look") {
				t.Errorf("%s: a write: %v", v.id, err)
			}
			if c := stats(t, n, v.id, v.target).GetVolumeCondition(); c.GetAbnormal() {
				t.Errorf("%s: %v", v.id, c)
			}
			if got := layers(t, v.target); got > 2 {
				t.Errorf("%s: %d mounts at the target", v.id, got)
			}
		}
		if dead, live := n.Metric(t, `kv3fs_csi_volumes{state="dead"}`), n.Metric(t, `kv3fs_csi_volumes{state="live"}`); dead != "0" || live != "3" {
			t.Errorf("%s dead volumes, %s live ones", dead, live)
		}
	}
	for _, v := range all {
		n.Unpublish(t, v.id, v.target)
	}
	if got := daemontest.MountsBelow(n.Dir + "/pods"); len(got) > 0 {
		t.Errorf("mounts are left: %v", got)
	}
}

// layers counts the mounts at a path that cover each other.
func layers(t *testing.T, at string) int {
	t.Helper()
	mounts, err := host.Local().Mounts()
	must(t, err)
	return len(host.Stack(mounts, at))
}

// A daemon that hangs holds up nobody for longer than the bound: not the pods to come, not statistics, not Probe, nor a plugin that is started
// meanwhile.
func TestHungDaemon(t *testing.T) {
	n := kubelet.Start(t, nil, []string{"--timeout", "2s"})
	target := n.Publish(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "v"}})
	n.Daemon.Freeze(t)
	for range 2 {
		n.Kill()
		n.Run(t)
		_, err := n.PluginNode().NodePublishVolume(t.Context(), n.Request(t, kubelet.Volume{ID: "late"}))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("a volume of a hung mount: %v", err)
		}
		if c := stats(t, n, "v", target).GetVolumeCondition(); !c.GetAbnormal() || !strings.HasPrefix(c.GetMessage(), "hung: ") {
			t.Errorf("%v", c)
		}
		_, err = n.Identity().Probe(t.Context(), &spec.ProbeRequest{})
		must(t, err)
	}
	n.Unpublish(t, "v", target) // that needs no daemon
	n.Daemon.Thaw(t)
	n.Unpublish(t, "w", n.Publish(t, kubelet.Volume{ID: "w"}))
}

// What is published survives the plugin, and a record that was torn is found again in the table of mounts.
func TestPluginIsRestarted(t *testing.T) {
	n := kubelet.Start(t, nil, nil)
	var targets []string
	for _, id := range []string{"a", "b", "c"} {
		targets = append(targets, n.Publish(t, kubelet.Volume{ID: id, Attributes: map[string]string{"subDirectory": "of/" + id}, ReadOnly: false}))
	}
	p := n.Pod(t, targets[0])
	inPod(t, p, 0, "echo 1 >f")
	n.Kill()
	if got := inPod(t, p, 0, "cat f"); got != "1" {
		t.Errorf("without the plugin: %q", got)
	}
	entries, err := os.ReadDir(n.State())
	must(t, err)
	if len(entries) != 3 {
		t.Fatalf("records: %v", entries)
	}
	for i, e := range entries {
		file := filepath.Join(n.State(), e.Name())
		text, err := os.ReadFile(file)
		must(t, err)
		switch i {
		case 0:
			text = text[:len(text)/2]
		case 1:
			text = []byte(strings.Replace(string(text), `"of/`, `"ox/`, 1))
		}
		must(t, os.WriteFile(file, text, 0o600))
	}
	n.Run(t)
	if got := strings.Count(n.Log(), "cannot be read and is set aside"); got != 2 {
		t.Errorf("%d records were refused:\n%s", got, n.Log())
	}
	for i, id := range []string{"a", "b", "c"} {
		r := &spec.NodePublishVolumeRequest{VolumeId: id, TargetPath: targets[i]}
		again := n.Request(t, kubelet.Volume{ID: id, Attributes: map[string]string{"subDirectory": "of/" + id}})
		r.VolumeCapability, r.VolumeContext = again.VolumeCapability, again.VolumeContext
		r.VolumeContext["csi.storage.k8s.io/pod.name"] = fmt.Sprint("pod-", i+1)
		_, err := n.PluginNode().NodePublishVolume(t.Context(), r)
		must(t, err) // kubelet may ask again
		if got := layers(t, targets[i]); got != 1 {
			t.Errorf("%s: %d mounts", id, got)
		}
		if c := stats(t, n, id, targets[i]).GetVolumeCondition(); c.GetAbnormal() {
			t.Errorf("%s: %v", id, c)
		}
	}
	p.End()
	for i, id := range []string{"a", "b", "c"} {
		n.Unpublish(t, id, targets[i])
	}
	if got := daemontest.MountsBelow(n.Dir + "/pods"); len(got) > 0 {
		t.Errorf("mounts are left: %v", got)
	}
}

// Where the data is gone with the daemon, sub-directories are made again as they were, with their quotas; that of a volume whose record is gone, too,
// is not made for everybody.
func TestDataIsLost(t *testing.T) {
	n := kubelet.Start(t, []string{"--capacity", "64MiB"}, nil)
	n.Stop(t)
	n.SetFlags("--data", n.Daemon.Data)
	n.Run(t)
	limited := n.Publish(t, kubelet.Volume{ID: "limited", Group: "2000", Attributes: map[string]string{"subDirectory": "limited", "quota": "4MiB"}})
	before, err := os.ReadDir(n.State())
	must(t, err)
	r := n.Request(t, kubelet.Volume{ID: "lost", Group: "2000", Attributes: map[string]string{"subDirectory": "lost"}})
	_, err = n.PluginNode().NodePublishVolume(t.Context(), r)
	must(t, err)
	n.Kill()
	n.Daemon.Kill()
	after, err := os.ReadDir(n.State())
	must(t, err)
	for i, e := range after {
		if i >= len(before) || e.Name() != before[i].Name() {
			must(t, os.Truncate(filepath.Join(n.State(), e.Name()), 10))
			break
		}
	}
	for _, dir := range []string{"limited", "lost"} {
		must(t, os.RemoveAll(filepath.Join(n.Daemon.Data, dir)))
	}
	n.Daemon.Start(t)
	n.Run(t)
	n.AwaitRecovery(t, 1)
	if got := stats(t, n, "limited", limited).GetUsage()[0].GetTotal(); got != 4<<20 {
		t.Errorf("the directory that was made again may have %d bytes", got)
	}
	eventually(t, "the other one is not made", func() bool { return strings.Contains(n.Log(), "whose it was is not known") })
	if _, err := os.Stat(filepath.Join(n.Daemon.Data, "lost")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	_, err = n.PluginNode().NodePublishVolume(t.Context(), r) // kubelet knows the group
	must(t, err)
	for _, dir := range []string{"limited", "lost"} {
		if fi, err := os.Stat(filepath.Join(n.Daemon.Data, dir)); err != nil || fi.Mode().Perm() != 0o770 || fi.Sys().(*syscall.Stat_t).Gid != 2000 {
			t.Errorf("%s: %v, %v", dir, fi, err)
		}
	}
}

// A quota is the directory's: writes end at it, and statistics show it.
func TestQuota(t *testing.T) {
	n := kubelet.Start(t, []string{"--capacity", "64MiB"}, nil)
	noData := n.Request(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "q", "quota": "4MiB"}})
	_, err := n.PluginNode().NodePublishVolume(t.Context(), noData)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--data") {
		t.Errorf("without --data: %v", err)
	}
	n.Stop(t)
	n.SetFlags("--data", n.Daemon.Data)
	n.Run(t)
	target := n.Publish(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "q", "quota": "4MiB"}})
	if got := stats(t, n, "v", target).GetUsage()[0].GetTotal(); got != 4<<20 {
		t.Errorf("the volume has %d bytes", got)
	}
	p := n.Pod(t, target)
	if out, err := p.Shell(t, 0, "head -c 8M /dev/zero >f"); err == nil || !strings.Contains(out, "quota") {
		t.Errorf("8 MiB in a quota of 4 MiB: %v, %s", err, out)
	}
	_, err = n.PluginNode().NodePublishVolume(t.Context(), n.Request(t, kubelet.Volume{ID: "w", Attributes: map[string]string{"subDirectory": "q", "quota": "8MiB"}}))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `volume "v"`) {
		t.Errorf("two quotas of one directory: %v", err)
	}
	look := n.Publish(t, kubelet.Volume{ID: "look", ReadOnly: true, Attributes: map[string]string{"subDirectory": "q", "quota": "1MiB"}})
	if got := stats(t, n, "look", look).GetUsage()[0].GetTotal(); got != 4<<20 {
		t.Errorf("a read-only volume has made the quota %d bytes", got)
	}
}

// A pod has the socket of its page namespace, also after the daemon's end.
func TestPagesNamespace(t *testing.T) {
	pages := daemontest.NewDir(t)
	must(t, os.Mkdir(filepath.Join(pages, "llama"), 0o755))
	socket := filepath.Join(pages, "llama", "pages.sock")
	n := kubelet.Start(t, []string{"--pages-listen", "llama=unix:" + socket}, []string{"--pages", pages})
	r := n.Request(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "l", "pagesNamespace": "opt"}})
	if _, err := n.PluginNode().NodePublishVolume(t.Context(), r); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--pages-listen opt=unix:") {
		t.Error(err)
	}
	p := n.Pod(t, n.Publish(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "l", "pagesNamespace": "llama"}}))
	const ask = `curl -s --unix-socket 3fs-pages/pages.sock http://x/healthz`
	if _, err := p.Shell(t, 0, "command -v curl"); err != nil {
		t.Skip("curl is missing")
	}
	before := inPod(t, p, 0, ask)
	n.Daemon.Kill()
	n.Daemon.Start(t)
	eventually(t, "the page service is back in the pod", func() bool {
		out, err := p.Shell(t, 0, ask)
		return err == nil && strings.TrimSpace(out) == before
	})
}

// targetOf is where a request's target is below kubelet's directory.
func targetOf(r *spec.NodePublishVolumeRequest) string {
	return r.GetTargetPath()[strings.LastIndex(r.GetTargetPath(), "/pods/"):]
}

// take has a request be for the target of another pod.
func take(r *spec.NodePublishVolumeRequest, target string) {
	r.TargetPath = target
	r.VolumeContext["csi.storage.k8s.io/pod.uid"], _, _ = strings.Cut(strings.TrimPrefix(targetOf(r), "/pods/"), "/")
}

// What cannot be done is refused by name, with the cure.
func TestRefusals(t *testing.T) {
	n := kubelet.Start(t, nil, []string{"--allow", "a=teams/a", "--allow", "b=.", "--allow", "*=of/{namespace}", "--allow-pages", "a=llama"})
	outside := daemontest.NewDir(t)
	must(t, os.MkdirAll(filepath.Join(n.Daemon.Data, "teams/a"), 0o755), os.Symlink(outside, filepath.Join(n.Daemon.Data, "teams/a/link")),
		os.WriteFile(filepath.Join(n.Daemon.Data, "teams/a/file"), nil, 0o644))
	taken := n.Publish(t, kubelet.Volume{ID: "first", Namespace: "a", Attributes: map[string]string{"subDirectory": "teams/a/x"}})
	n.Publish(t, kubelet.Volume{ID: "own", Namespace: "c", Attributes: map[string]string{"subDirectory": "of/c/x"}})
	n.Publish(t, kubelet.Volume{ID: "all", Namespace: "b"})
	foreign := n.Request(t, kubelet.Volume{ID: "foreign", Namespace: "b"})
	must(t, os.Mkdir(foreign.TargetPath, 0o755), unix.Mount("none", foreign.TargetPath, "tmpfs", 0, ""))
	for _, c := range []struct {
		what   string
		change func(r *spec.NodePublishVolumeRequest)
		code   codes.Code
		says   string
	}{
		{"no id", func(r *spec.NodePublishVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		{"no target", func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "" }, codes.InvalidArgument, "target_path"},
		{"target elsewhere", func(r *spec.NodePublishVolumeRequest) { r.TargetPath = outside + targetOf(r) }, codes.InvalidArgument, "--kubelet"},
		{"target above", func(r *spec.NodePublishVolumeRequest) { r.TargetPath = n.Dir + "/.." + targetOf(r) }, codes.InvalidArgument, "--kubelet"},
		{"target in the records", func(r *spec.NodePublishVolumeRequest) { r.TargetPath = n.State() + targetOf(r) }, codes.InvalidArgument, "kubelet"},
		{"no parent", func(r *spec.NodePublishVolumeRequest) { r.TargetPath = n.Dir + "/none" + targetOf(r) }, codes.InvalidArgument, "no such file"},
		{"no capability", func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "volume_capability"},
		{"block", func(r *spec.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		}, codes.InvalidArgument, "Filesystem"},
		{"mount options", func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"noatime"} }, codes.InvalidArgument, "noatime"},
		{"file system", func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = "ext4" }, codes.InvalidArgument, "fsType"},
		{"group", func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "staff" }, codes.InvalidArgument, "staff"},
		{"misspelt", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subdirectory"] = "x" }, codes.InvalidArgument, "is subDirectory meant"},
		{"unknown", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["colour"] = "x" }, codes.InvalidArgument, `"colour"`},
		{"dots", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/a/../../x" }, codes.InvalidArgument, ".."},
		{"absolute", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "/teams/a" }, codes.InvalidArgument, "slash"},
		{"state", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = ".kv3fs" }, codes.InvalidArgument, "kv3fs's own"},
		{"control", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "3fs-virt/iovs" }, codes.InvalidArgument, "kv3fs's own"},
		{"read only", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["readOnly"] = "yes" }, codes.InvalidArgument, "true or false"},
		{"quota", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["quota"] = "much" }, codes.InvalidArgument, `quota "much"`},
		{"percent", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["quota"] = "50%" }, codes.InvalidArgument, "500GiB"},
		{"quota of all", func(r *spec.NodePublishVolumeRequest) {
			delete(r.VolumeContext, "subDirectory")
			r.VolumeContext["quota"] = "1GiB"
		}, codes.InvalidArgument, "--capacity"},
		{"page namespace", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["pagesNamespace"] = "a/b" }, codes.InvalidArgument, "pagesNamespace"},
		{"no page services", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["pagesNamespace"] = "llama" }, codes.FailedPrecondition, "--pages"},
		{"another's keys", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["pagesNamespace"] = "opt" }, codes.PermissionDenied, "--allow-pages a=opt"},
		{"another's", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/b" }, codes.PermissionDenied, "--allow a=teams/b"},
		{"another's name that begins alike", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/ab" }, codes.PermissionDenied, "teams/a"},
		{"all", func(r *spec.NodePublishVolumeRequest) { delete(r.VolumeContext, "subDirectory") }, codes.PermissionDenied, "--allow a=."},
		{"nobody's pod", func(r *spec.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/pod.namespace") }, codes.PermissionDenied, "podInfoOnMount"},
		{"no uid", func(r *spec.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/pod.uid") }, codes.PermissionDenied, "podInfoOnMount"},
		{"a uid that kubelet did not say", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/pod.uid"] = "mine" }, codes.PermissionDenied, "podInfoOnMount"},
		{"quota without a grant", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["quota"] = "1GiB" }, codes.PermissionDenied, "--allow-quota a=SIZE"},
		{"link", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/a/link" }, codes.FailedPrecondition, "symbolic link"},
		{"below a link", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/a/link/x" }, codes.FailedPrecondition, "symbolic link"},
		{"file", func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["subDirectory"] = "teams/a/file" }, codes.FailedPrecondition, "something else than a directory"},
		{"two on one target", func(r *spec.NodePublishVolumeRequest) { take(r, taken) }, codes.AlreadyExists, `volume "first"`},
		{"a mount on the target", func(r *spec.NodePublishVolumeRequest) { take(r, foreign.TargetPath) }, codes.AlreadyExists, "tmpfs"},
	} {
		r := n.Request(t, kubelet.Volume{ID: "v", Namespace: "a", Attributes: map[string]string{"subDirectory": "teams/a"}})
		c.change(r)
		_, err := n.PluginNode().NodePublishVolume(t.Context(), r)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
	_, err := n.PluginNode().NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "second", TargetPath: taken})
	if status.Code(err) != codes.AlreadyExists || layers(t, taken) != 1 {
		t.Errorf("the end of another's volume: %v, %d mounts", err, layers(t, taken))
	}
	_, err = n.PluginNode().NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: "second", VolumePath: taken})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	n.Daemon.Stop()
	_, err = n.PluginNode().NodePublishVolume(t.Context(), n.Request(t, kubelet.Volume{ID: "v", Namespace: "b"}))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "kv3fs serve") {
		t.Errorf("no mount: %v", err)
	}
}

// kubelet finds the plugin by its registration socket, without anybody between them.
func TestRegistration(t *testing.T) {
	n := kubelet.Start(t, nil, nil)
	c := registration.NewRegistrationClient(kubelet.Dial(t, filepath.Join(n.Dir, "plugins_registry", "kv3fs.io-reg.sock")))
	info, err := c.GetInfo(t.Context(), &registration.InfoRequest{})
	must(t, err)
	if info.GetType() != registration.CSIPlugin || info.GetName() != "kv3fs.io" || info.GetEndpoint() != n.Socket() || info.GetSupportedVersions()[0] != "1.0.0" {
		t.Errorf("%v", info)
	}
	_, err = c.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{Error: "no such socket"})
	must(t, err)
	_, err = c.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
	must(t, err)
	eventually(t, "both are logged", func() bool {
		return strings.Contains(n.Log(), "no such socket") && strings.Contains(n.Log(), "kubelet has registered the plugin")
	})
	who, err := spec.NewNodeClient(kubelet.Dial(t, info.GetEndpoint())).NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
	if err != nil || who.GetNodeId() != "node-1" {
		t.Errorf("%v, %v", who, err)
	}
	for _, socket := range []string{n.Socket(), filepath.Join(n.Dir, "plugins_registry", "kv3fs.io-reg.sock")} {
		if fi, err := os.Stat(socket); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", socket, fi, err)
		}
	}
	torn := filepath.Join(n.State(), "torn.json")
	must(t, os.WriteFile(torn, nil, 0o600))
	second, err := n.Command().CombinedOutput()
	if err == nil || !strings.Contains(string(second), "another plugin serves") {
		t.Errorf("a second plugin: %v, %s", err, second)
	}
	if _, err := os.Stat(torn); err != nil {
		t.Errorf("a second plugin has changed the first one's records: %v", err)
	}
	n.Stop(t)
	if _, err := os.Lstat(filepath.Join(n.Dir, "plugins_registry", "kv3fs.io-reg.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("kubelet still finds a plugin that has ended: %v", err)
	}
	n.Run(t)
}
