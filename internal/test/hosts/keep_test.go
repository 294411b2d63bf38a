package hosts

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Two hosts keep one directory of the file system itself: one is at work, and the other takes over when it is killed. Host 3, which only writes and reads, sees
// what they remove: the files written first, whole, and nothing else. All hosts here have one clock: namespaces cannot set it.
func keep(t *testing.T, h *Hosts) {
	binary, err := daemontest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	const (
		dir     = "/mnt/data/kept"
		fits    = 16 // files, a little less than the capacity
		log     = "/mnt/disk/keep.log"
		working = "keeping the directory: this host has the lease"
		stopped = "lost the lease" // as where this machine stands still for ten seconds
	)
	h.Must(3, "mkdir "+dir)
	pids := map[int]string{}
	for host := 1; host <= 2; host++ {
		eventually(t, "the directory is there", func() bool { _, err := h.Run(host, "test -d "+dir); return err == nil })
		pids[host] = strings.TrimSpace(h.Must(host, fmt.Sprintf("setsid %s keep %s --capacity %d --scan-every 1s --grace 1s --scan-rate 0 --lease 10s --log-level DEBUG </dev/null >%s 2>&1 & echo $!",
			binary, dir, (fits+1)*(256<<10), log)))
	}
	defer func() {
		for host, pid := range pids {
			h.Must(host, "kill "+pid+"; while kill -0 "+pid+" 2>/dev/null; do sleep 0.1; done")
		}
		h.Must(3, "rm -rf "+dir) // without -f, a name that was removed by another host is an error
	}()
	works := func(host int) bool {
		said, _ := h.Run(host, "cat "+log)
		return strings.LastIndex(said, working) > strings.LastIndex(said, stopped)
	}
	worker := func() (host int) {
		t.Helper()
		eventually(t, "a keeper is at work", func() bool {
			for host = range pids {
				if works(host) {
					return true
				}
			}
			return false
		})
		return host
	}
	name := func(n int) string { return fmt.Sprintf("%s/model@1@0@%x@half.data", dir, n) }
	// writes has host 3 write files as LMCache does, each full of its number, and two seconds apart by their times: the keeper counts in seconds, and CephFS
	// takes many in one.
	writes := func(from, to int) {
		t.Helper()
		h.Must(3, fmt.Sprintf(`for n in $(seq %d %d); do f=%s/model@1@0@$(printf %%x $n)@half; yes $n | head -c 262144 >$f.tmp && touch -d @$(($(date +%%s) - 600 + 2 * n)) $f.tmp && mv $f.tmp $f.data || exit 1; done`, from, to-1, dir))
	}
	left := func() []string { return strings.Fields(h.Must(3, "cd "+dir+" && ls | grep data$ || true")) }
	shrinks := func(last int) {
		t.Helper()
		eventually(t, "the directory is within its capacity on host 3", func() bool { return len(left()) <= fits })
		if n := len(left()); n < fits/2 {
			t.Errorf("%d files are left of a capacity of %d", n, fits)
		}
		// What was written last is there, and right.
		for n := last - 3; n < last; n++ {
			if got := h.Must(3, "head -c 262144 "+name(n)+" | uniq | head -1"); strings.TrimSpace(got) != fmt.Sprint(n) {
				for host := range pids {
					t.Log(h.Must(host, "cat "+log))
				}
				t.Fatalf("%s: %q; left: %v", name(n), got, left())
			}
		}
		// GlusterFS's client on host 3 may remember the name for a second after another host has removed the file.
		within(t, namesBound(), "what was written first is gone from host 3", func() bool { _, err := h.Run(3, "stat "+name(0)); return err != nil })
	}

	worker()
	writes(0, 2*fits)
	shrinks(2 * fits)
	first := worker()
	other := 3 - first
	if works(other) && works(first) {
		t.Fatalf("both hosts are at work: %s", h.Must(other, "cat "+log))
	}
	h.Must(first, "kill -9 "+pids[first])
	delete(pids, first)
	if got := worker(); got != other {
		t.Fatalf("host %d is at work", got)
	}
	writes(2*fits, 4*fits)
	shrinks(4 * fits)
	if said := h.Must(other, "cat "+log); !strings.Contains(said, "removed a file") {
		t.Errorf("host %d has removed nothing: %s", other, said)
	}
}
