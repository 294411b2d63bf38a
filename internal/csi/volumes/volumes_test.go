package volumes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Kubelet's directory may be a symbolic link, as it is where it was moved to another disk. Without a mount, volumes are refused with the cure,
// and nothing is left of them.
func TestLinkedKubelet(t *testing.T) {
	dir := t.TempDir()
	kubelet := filepath.Join(dir, "link")
	pod := filepath.Join(dir, "real", "pods", "p")
	if err := errors.Join(os.MkdirAll(pod, 0o755), os.Symlink("real", kubelet)); err != nil {
		t.Fatal(err)
	}
	v, err := Open(Config{Mount: filepath.Join(dir, "3fs"), Kubelet: kubelet, State: filepath.Join(kubelet, "plugins/x/state"), Patience: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var f *Failure
	err = v.Publish(t.Context(), Record{Volume: "v", Target: filepath.Join(kubelet, "pods/p/mount"), SubDirectory: "."})
	if !errors.As(err, &f) || f.Kind != NotReady || !strings.Contains(err.Error(), "start kv3fs serve") {
		t.Errorf("%v", err)
	}
	if err := v.Unpublish(t.Context(), "v", filepath.Join(kubelet, "pods/p/mount")); err != nil {
		t.Error(err)
	}
	if err := v.Publish(t.Context(), Record{Volume: "v", Target: filepath.Join(dir, "real/../other"), SubDirectory: "."}); !errors.As(err, &f) || f.Kind != Invalid {
		t.Errorf("%v", err)
	}
	for _, at := range []string{pod, v.c.State} {
		if left, err := os.ReadDir(at); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", at, left, err)
		}
	}
}
