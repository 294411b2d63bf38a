package conformance

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/kubelet"
)

// A pod whose volume is a sub-directory finds the mount by the C library's rule, and uses rings without any privilege; after a restart of
// the daemon, too.
func TestVolumeOfPod(t *testing.T) {
	n := kubelet.Start(t, nil, nil)
	p := n.Pod(t, n.Publish(t, kubelet.Volume{ID: "v", Attributes: map[string]string{"subDirectory": "teams/a"}, Group: "2000"}))
	write(t, filepath.Join(n.Daemon.Data, "teams/a/x"), pattern(8192, 5))
	for round := range 2 {
		if round == 1 {
			n.Daemon.Kill()
			n.Daemon.Start(t)
			n.AwaitRecovery(t, 1)
		}
		c := startTool(t, p.Command(context.Background(), 2000, usrbioTool(t)))
		if a := c.ok("extract %s/x", p.Path); a.kv["mount"] != p.Path {
			t.Fatal(a.line)
		}
		c.ok("open f %s/x rdonly", p.Path)
		c.ok("reg f")
		c.ok("iovcreate v %s 8192 0 -1", p.Path)
		c.ok("iorcreate r %s 4 r 0 -1", p.Path)
		c.ok("prep r v r 0 f 0 8192 1")
		c.ok("submit r")
		if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 8192 {
			t.Error(got)
		}
		c.ok("check v 0 8192 5")
		c.end()
	}
}
