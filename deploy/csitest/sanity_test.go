package csitest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// limit bounds the start and the end of a process.
const limit = time.Minute

// A plugin with a real daemon and a real mount passes csi-sanity.
func TestSanity(t *testing.T) {
	binary := os.Getenv("KV3FS_BINARY")
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "kv3fs")
		build := exec.Command("go", "build", "-o", binary, "./cmd/kv3fs")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if os.Geteuid() != 0 {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
			t.Fatal("mounts need root")
		}
		t.Skip("NOT TESTED: mounts need root")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mount, kubelet := filepath.Join(dir, "3fs"), filepath.Join(dir, "kubelet")
	pods := filepath.Join(kubelet, "pods")
	if err := os.MkdirAll(pods, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, `msg=serving `, binary, "serve", "--data", filepath.Join(dir, "data"), "--mount", mount, "--capacity", "64MiB", "--drain", "0s", "--pages-listen", "unix:"+filepath.Join(dir, "p.sock"), "--admin-listen", "off")
	run(t, `msg="serving volumes"`, binary, "csi", "--mount", mount, "--kubelet", kubelet, "--data", filepath.Join(dir, "data"), "--node", "node-1", "--admin-listen", "off")

	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(kubelet, "plugins/kv3fs.io/csi.sock")
	config.TargetPath, config.StagingPath = filepath.Join(pods, "target"), filepath.Join(pods, "staging")
	config.ControllerAddress = administer(t)
	context := sanity.GinkgoTest(&config)
	defer context.Finalize()
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, report := ginkgo.GinkgoConfiguration()
	// The rest is about controllers. What is skipped of these needs one, or staging, or a growing volume.
	suite.FocusStrings = []string{"Identity Service", "Node Service", "volume lifecycle"}
	suite.FailOnEmpty, report.NoColor = true, true
	ginkgo.RunSpecs(t, "kv3fs csi", suite, report)
}

// run runs a program until the test ends. It returns once that prints a text, and fails the test unless it ends in order.
func run(t *testing.T, serving string, program string, args ...string) {
	t.Helper()
	out := &output{want: []byte(serving), found: make(chan struct{})}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil || t.Failed() {
				t.Errorf("%s: %v\n%s", args[0], err, out.text.Bytes())
			}
		case <-time.After(limit):
			_ = cmd.Process.Kill()
			<-ended
			t.Errorf("%s does not end\n%s", args[0], out.text.Bytes())
		}
	})
	select {
	case <-out.found:
	case err := <-ended:
		ended <- err
		t.Fatalf("%s ended", args[0])
	case <-time.After(limit):
		t.Fatalf("%s does not serve", args[0])
	}
}

// output is what a process prints.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  []byte
	found chan struct{} // closed once want was printed
	done  bool
}

// Write appends.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(b)
	if !o.done && bytes.Contains(o.text.Bytes(), o.want) {
		o.done = true
		close(o.found)
	}
	return len(b), nil
}
