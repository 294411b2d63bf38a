// Package apiservertest has tests run against a real kube-apiserver over a real etcd.
//
// There is no scheduler, kubelet, controller of DaemonSets or garbage collector: a test that needs what they do does it itself.
package apiservertest

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// patience is how long a server may take to start or stop on a machine that has much else to do.
const patience = 5 * time.Minute

// Start starts a server with the CRDs of those files and directories, and stops it with the test. Config of the result is an administrator's. It skips the test where KV3FS_KUBE_APISERVER does not name
// a kube-apiserver, and fails it where KV3FS_REQUIRE_MOUNTS wants everything tested.
func Start(t testing.TB, crds ...string) *envtest.Environment {
	t.Helper()
	program := os.Getenv("KV3FS_KUBE_APISERVER")
	etcd, err := exec.LookPath("etcd")
	if program == "" || err != nil {
		missing := t.Skipf
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			missing = t.Fatalf
		}
		missing("needs etcd (Debian's etcd-server) on the PATH and KV3FS_KUBE_APISERVER=$(scripts/kubeapiserver)")
	}
	log.SetLogger(logr.Discard()) // envtest and clients say much
	env := &envtest.Environment{CRDDirectoryPaths: crds, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
	env.CRDInstallOptions.MaxTime = patience
	env.ControlPlane.GetAPIServer().Path = program
	env.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	if _, err := env.Start(); err != nil {
		t.Fatalf("start kube-apiserver: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop kube-apiserver: %v", err)
		}
	})
	return env
}
