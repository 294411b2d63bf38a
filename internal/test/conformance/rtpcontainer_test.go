package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// rtpMount is where RTP-LLM looks for the 3FS.
const rtpMount = "/3fs/stage/3fs"

// podman runs containers whose root directory is empty but for the host's programs and
// libraries, so that no image is needed.
type podman struct {
	t      *testing.T
	dir    string
	global []string
	limits []string // flags for limits that this process may set
}

// newPodman skips the test where podman cannot start a container.
func newPodman(t *testing.T) *podman {
	t.Helper()
	daemontest.NeedRoot(t)
	for _, program := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the generated containers are not run: there is no %s (apt install podman runc)", program)
		}
	}
	dir := t.TempDir()
	p := &podman{t: t, dir: dir, global: []string{
		"--root", dir + "/storage", "--runroot", dir + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc",
	}}
	// By itself, podman raises these two, which not every process may.
	p.limits = []string{"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}
	t.Cleanup(func() {
		if out, err := p.command("rm", "-f", "-a", "-t", "10"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if out, err := p.run([]string{"--rm"}, "true").CombinedOutput(); err != nil {
		t.Skipf("the generated containers are not run: podman cannot start one here: %v: %s", err, out)
	}
	return p
}

// command runs podman.
func (p *podman) command(args ...string) ([]byte, error) {
	return exec.Command("podman", append(p.global[:len(p.global):len(p.global)], args...)...).CombinedOutput()
}

// rootfs makes a container's root directory.
func (p *podman) rootfs() string {
	dir, err := os.MkdirTemp(p.dir, "root")
	must(p.t, err)
	for _, name := range []string{"usr", "proc", "sys", "dev", "tmp", "etc", "run", "var"} {
		must(p.t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		must(p.t, os.Symlink("usr/"+name, filepath.Join(dir, name)))
	}
	must(p.t, os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644))
	return dir
}

// run returns a command in a new container with the given flags.
func (p *podman) run(flags []string, command ...string) *exec.Cmd {
	args := append([]string{}, p.global...)
	args = append(args, "run", "--network=none", "-v", "/usr:/usr:ro")
	args = append(append(args, p.limits...), flags...)
	args = append(args, "--rootfs", p.rootfs())
	return exec.Command("podman", append(args, command...)...)
}

// likeRTP stores and loads a file as RTP-LLM does: memory in blocks of 1 MiB, a ring for each
// file operation, a request for each MiB, all at once.
func likeRTP(c *tool, dir string) {
	defer c.end()
	const pieces, piece = 4, 1 << 20
	c.ok("iovcreate out %s %d %d -1", rtpMount, 64<<20, piece)
	c.ok("iovcreate in %s %d 0 -1", rtpMount, 64<<20)
	c.ok("open f %s/%s/1_2 rdwr,creat 0666", rtpMount, dir)
	c.ok("fill out 0 %d 7", pieces*piece)
	for _, way := range []struct{ iov, ring, flag string }{{"out", "put", "w"}, {"in", "get", "r"}} {
		c.ok("iorcreate4 %s %s %d %s 0 0 -1 0", way.ring, rtpMount, pieces+1, way.flag)
		c.ok("reg f")
		c.ok("prep_many %s %s %s 0 f 0 %d %d 1", way.ring, way.iov, way.flag, piece, pieces)
		c.ok("submit %s", way.ring)
		if got := c.ok("wait %s %d %d 60000", way.ring, pieces, pieces); got.kv["n"] != fmt.Sprint(pieces) || strings.Count(got.line, fmt.Sprintf(":%d:", piece)) != pieces {
			c.t.Errorf("%s: %s", way.ring, got.line)
		}
		c.ok("dereg f")
		c.ok("iordestroy %s", way.ring)
	}
	c.ok("check in 0 %d 7", pieces*piece)
	c.ok("fsync f")
}

// generated returns the directory with what engine-config writes for one rank of RTP-LLM's own
// 3FS tier.
func generated(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command(kv3fs(t), "engine-config", "rtp-llm", "--form", "direct", "--mount", rtpMount, "--shm", "64GiB", "--out", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// The generated docker line, in podman: every flag but those that need GPUs, an image or rights
// that this process lacks.
func TestRTPDockerLine(t *testing.T) {
	p := newPodman(t)
	top := "/" + strings.Split(rtpMount, "/")[1]
	if _, err := os.Lstat(top); err == nil {
		t.Skipf("%s is in use here", top)
	}
	t.Cleanup(func() {
		for dir := rtpMount; dir != "/"; dir = filepath.Dir(dir) {
			os.Remove(dir)
		}
	})
	must(t, os.MkdirAll(rtpMount, 0o755))
	daemontest.ServeWith(t, daemontest.Options{Mount: rtpMount})
	dir := generated(t)
	script, err := os.ReadFile(filepath.Join(dir, "start-rtp-llm.sh"))
	must(t, err)
	before, line, found := strings.Cut(string(script), "docker run ")
	line, _, image := strings.Cut(strings.ReplaceAll(line, "\\\n", " "), " IMAGE ")
	if !found || !image {
		t.Fatalf("no docker line in %s", script)
	}
	if out, err := exec.Command("sh", "-ec", before).CombinedOutput(); err != nil { // mkdir
		t.Fatalf("%v: %s", err, out)
	}
	line = strings.Replace(line, "--gpus all", "", 1)
	var limits []string
	line = regexp.MustCompile(`--ulimit \S+`).ReplaceAllStringFunc(line, func(flag string) string {
		limits = append(limits, strings.Fields(flag)...)
		return ""
	})
	line = strings.Replace(line, "--env-file ", "--env-file "+dir+"/", 1)
	flags := append(strings.Fields(line), "-i", "--rm", "-v", filepath.Dir(usrbioTool(t))+":/client:ro")
	raised := podman{t: t, dir: p.dir, global: p.global, limits: append(p.limits[:len(p.limits):len(p.limits)], limits...)}
	if out, err := raised.run([]string{"--rm"}, "true").CombinedOutput(); err == nil {
		p = &raised
	} else {
		t.Logf("without %v, which this process may not set: %s", limits, out)
	}
	likeRTP(startTool(t, p.run(flags, "sh", "-ec", `test "$ENABLE_3FS" = 1; exec /client/usrbio_tool`)), "rtp_llm")
}

// pod is what the test needs of the generated pod.
type pod struct {
	Spec struct {
		ShareProcessNamespace      bool
		InitContainers, Containers []struct {
			Args, Command []string
			StartupProbe  struct{ Exec struct{ Command []string } }
			VolumeMounts  []volumeMount
		}
		Volumes []volume
	}
}

type volumeMount struct{ Name, MountPath, MountPropagation string }

type volume struct {
	Name     string
	EmptyDir *struct{ Medium, SizeLimit string }
}

// The generated pod, with its volumes as the kubelet makes them: a tmpfs of the given size, and a
// directory that is a shared mount. The platform's JSON names the same volumes.
func TestRTPPod(t *testing.T) {
	p := newPodman(t)
	dir := generated(t)
	var config pod
	text, err := os.ReadFile(filepath.Join(dir, "rtp-llm-pod.yaml"))
	must(t, err)
	must(t, yaml.Unmarshal([]byte(lowered(string(text))), &config))
	platformMounts, platformVolumes := platform(t, dir)
	server, client := config.Spec.InitContainers[0], config.Spec.Containers[0]
	if fmt.Sprint(platformMounts) != fmt.Sprint(client.VolumeMounts) || len(platformVolumes) != 2 {
		t.Errorf("the platform's JSON has other volumes than the pod: %v, %v", platformMounts, client.VolumeMounts)
	}
	where := map[string]string{}
	for _, v := range config.Spec.Volumes {
		path := filepath.Join(p.dir, v.Name)
		must(t, os.Mkdir(path, 0o755))
		switch where[v.Name] = path; {
		case v.EmptyDir == nil:
			continue
		case v.EmptyDir.Medium == "Memory":
			must(t, unix.Mount("tmpfs", path, "tmpfs", 0, "size="+strings.TrimSuffix(v.EmptyDir.SizeLimit, "Gi")+"g"))
		default:
			must(t, unix.Mount(path, path, "", unix.MS_BIND, ""))
			must(t, unix.Mount("", path, "", unix.MS_SHARED, ""))
		}
		t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	}
	volumes := func(mounts []volumeMount) (flags []string) {
		how := map[string]string{"Bidirectional": ":rshared", "HostToContainer": ":rslave", "": ""}
		for _, m := range mounts {
			flags = append(flags, "-v", where[m.Name]+":"+m.MountPath+how[m.MountPropagation])
		}
		return flags
	}
	const name = "kv3fs-rtp-pod"
	flags := append(volumes(server.VolumeMounts), "-d", "--name", name, "--privileged", "-v", kv3fs(t)+":/kv3fs:ro")
	if out, err := p.run(flags, append([]string{"/kv3fs"}, server.Args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer p.command("rm", "-f", "-t", "10", name)                                       // before its volumes are unmounted
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // as the kubelet does
		_, err := p.command(append([]string{"exec", name}, server.StartupProbe.Exec.Command...)...)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			out, _ := p.command("logs", name)
			t.Fatalf("kv3fs does not start: %v: %s", err, out)
		}
	}
	flags = append(volumes(client.VolumeMounts), "-i", "--rm", "-v", filepath.Dir(usrbioTool(t))+":/client:ro")
	if config.Spec.ShareProcessNamespace {
		flags = append(flags, "--pid", "container:"+name)
	}
	start := strings.Replace(client.Command[2], "python3 -m rtp_llm.start_server", "/client/usrbio_tool", 1)
	likeRTP(startTool(t, p.run(flags, client.Command[0], client.Command[1], start)), "rtp_llm")
}

// lowered writes YAML's keys as Go's decoder looks for them: in lower case.
func lowered(text string) string {
	return regexp.MustCompile(`[A-Za-z]+:`).ReplaceAllStringFunc(text, strings.ToLower)
}

// platform reads the volumes for RTP-LLM's own platform.
func platform(t *testing.T, dir string) (mounts []volumeMount, volumes []volume) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "rtp-llm-container.json"))
	must(t, err)
	var config struct {
		Settings []string `json:"container_configs"`
	}
	must(t, json.Unmarshal(text, &config))
	for _, setting := range config.Settings {
		name, value, _ := strings.Cut(setting, "=")
		into := map[string]any{"JSON_VOLUME_MOUNTS": &mounts, "JSON_VOLUMES": &volumes}[name]
		must(t, json.Unmarshal([]byte(value), into))
	}
	return mounts, volumes
}
