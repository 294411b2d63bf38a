package doctor

import (
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// The doctor says in which row of the table of what survives what a host is.
func TestOutlives(t *testing.T) {
	const release, timeout = "/proc/sys/kernel/osrelease", "/proc/sys/fs/fuse/default_request_timeout"
	for _, c := range []struct {
		says, kernel string
		status       Status
		found        string
	}{
		{wire.OutlivesMount, "6.9.0", OK, "open files, mappings and locks go on"},
		{wire.OutlivesMount, "6.8.12", Note, "6.8.12 does not send requests again"},
		{wire.OutlivesRings, "6.8.12", Note, "6.8.12 does not send requests again"},
		{wire.OutlivesRings, "6.18.1", Note, "nobody keeps the mount's descriptor"},
		{"--restart-state is off", "6.18.1", Note, "--restart-state is off"},
	} {
		f := byID(t, checkOutlives(fixture(t, map[string]string{release: c.kernel, timeout: "0"}), &wire.Daemon{Outlives: c.says}), "restart")
		want(t, c.says, f, "restart", c.status)
		if !strings.Contains(f.Found, c.found) {
			t.Errorf("%s on %s: %+v", c.says, c.kernel, f)
		}
	}
	all := checkOutlives(fixture(t, map[string]string{release: "6.18.1", timeout: "15"}), &wire.Daemon{Outlives: wire.OutlivesMount, NoHandles: true})
	want(t, "a timeout", byID(t, all, "restart.timeout"), "restart.timeout", Warning)
	want(t, "no handles", byID(t, all, "restart.handles"), "restart.handles", Note)
	if all := checkOutlives(fixture(t, nil), &wire.Daemon{}); len(all) > 0 {
		t.Errorf("of an older daemon: %+v", all)
	}
}
