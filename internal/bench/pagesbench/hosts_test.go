package pagesbench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Two services that share an index, here one under two names, are compared; and how long one
// answers nothing while it is stopped.
func TestHosts(t *testing.T) {
	bin, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	s, err := startOurs(t.Context(), bin, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	const stopped = 700 * time.Millisecond
	pid := s.child.PID()
	r, err := Hosts(t.Context(), HostsOptions{
		URLs:  []string{"http://" + s.to.address, "http://" + s.to.address},
		Batch: 16, Pages: 1 << 10, Runs: 2, RunTime: 20 * time.Millisecond, Calm: 200 * time.Millisecond,
		Failover: []string{"sh", "-c", fmt.Sprintf("kill -STOP %d; sleep %v; kill -CONT %d", pid, stopped.Seconds(), pid)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Services) != 2 || r.Services[1].Exists.P50Ms <= 0 || r.Services[1].Store.P50Ms <= 0 || r.Services[0].KeysPerSecond <= 0 || r.Services[1].ToLeader <= 0 {
		t.Errorf("%+v", r)
	}
	if f := r.Failover; f == nil || f.ExistsMs < milliseconds(stopped)/2 || f.StoreMs < milliseconds(stopped)/2 {
		t.Errorf("%+v", f)
	}
	if _, err := Hosts(t.Context(), HostsOptions{URLs: []string{"http://" + s.to.address}}); err == nil || !strings.Contains(err.Error(), "the leader's first") {
		t.Errorf("one service: %v", err)
	}
	if _, err := Hosts(t.Context(), HostsOptions{URLs: []string{"http://" + s.to.address, "unix:x"}}); err == nil {
		t.Error("a socket is taken")
	}
}
