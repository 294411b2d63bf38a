// Package daemontest runs the kv3fs of this tree as the operator configures it.
package daemontest

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
)

// Daemon is a kv3fs with the configuration that the operator makes.
type Daemon struct {
	process *exec.Cmd
	Port    int32 // of its admin address
	pages   string
}

// Serve runs a daemon as the container of a cache would, in a directory of its own. The test is skipped where mounts are impossible.
func Serve(t *testing.T, cache string, secret map[string][]byte) *Daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		missing := t.Skip
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			missing = t.Fatal
		}
		missing("a daemon of all users needs root")
	}
	root, err := os.MkdirTemp("/dev/shm", "kv3fs-operator-test") // restart-state wants a tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	write := func(name string, content []byte) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for key, value := range secret {
		write("etc/kv3fs-daemon/"+key, value)
	}
	write("data/model/block", make([]byte, 8<<20))
	d := &Daemon{Port: freePort(t), pages: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	c := &v1alpha1.KVCache{}
	c.Name = cache
	c.Spec.Data.HostPath = &v1alpha1.HostPath{Path: "/srv/" + cache}
	c.Spec.Capacity = "1Gi"
	c.Spec.PageService.Port = 18000
	config, err := build.Config(build.Inputs{Cache: c, Namespace: "kv3fs-system"})
	if err != nil {
		t.Fatal(err)
	}
	config = strings.NewReplacer("/etc/", root+"/etc/", ": /data", ": "+root+"/data", ": /run/", ": "+root+"/run/", ": /var/", ": "+root+"/var/",
		fmt.Sprintf("0.0.0.0:%d", build.AdminPort), fmt.Sprintf("127.0.0.1:%d", d.Port), "0.0.0.0:18000", d.pages).Replace(config)
	write("kv3fs.yaml", []byte(config))
	// Volumes of the node.
	for _, dir := range []string{"/run/kv3fs.io", filepath.Dir(build.MountPath(cache))} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.process = exec.Command(Program(t), "hold", "--", "serve", "--config", root+"/kv3fs.yaml")
	d.process.Env = append(os.Environ(), "KV3FS_IDENTITY=node-a")
	said := &bytes.Buffer{}
	d.process.Stdout, d.process.Stderr = said, said
	if err := d.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop(t)
		if t.Failed() {
			t.Logf("the daemon said:\n%s", said)
		}
	})
	return d
}

// Stop stops the daemon, if it runs.
func (d *Daemon) Stop(t *testing.T) {
	t.Helper()
	if d.process == nil {
		return
	}
	if err := d.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := d.process.Wait(); err != nil {
		t.Error("the daemon:", err)
	}
	d.process = nil
}

// LookUp stores a key as vLLM's connector does, and asks for it and another one.
func (d *Daemon) LookUp(t *testing.T) {
	t.Helper()
	for _, request := range []struct{ path, body string }{
		{"/rank/0/initialize", `{"num_pages": 8, "role": "worker"}`},
		{"/keys/batch_allocate", `{"rank": 0, "keys": [["stored", ""]]}`},
		{"/keys/confirm_write", `{"rank": 0, "confirmations": [["stored", 0]], "pages_to_release": []}`},
		{"/keys/get_locations", `{"rank": 0, "keys": ["stored", "other"]}`},
	} {
		response, err := http.Post("http://"+d.pages+request.path, "application/json", strings.NewReader(request.body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode >= http.StatusBadRequest {
			t.Fatalf("%s: %s", request.path, response.Status)
		}
	}
}

// Program returns the kv3fs of this tree.
func Program(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("KV3FS_BINARY"); binary != "" {
		return binary
	}
	binary := filepath.Join(t.TempDir(), "kv3fs")
	build := exec.Command("go", "build", "-o", binary, "./cmd/kv3fs")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kv3fs: %v\n%s", err, out)
	}
	return binary
}

func freePort(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}
