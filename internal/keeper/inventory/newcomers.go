package inventory

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// newcomers remembers when scans found the files that were not there, or had another name, when the scan before looked,
// and whose mtimes say otherwise: they are from a host whose clock differs.
type newcomers struct {
	mu    sync.Mutex
	found map[Key]uint32 // on the inventory's clock
}

// mostNewcomers bounds newcomers.found, to 4 MiB or so. Of what is beyond that only mtimes tell.
const mostNewcomers = 1 << 16

// isNew remembers a file that was found under a new name.
func (v *Inventory) isNew(k Key, st *unix.Statx_t) {
	if v.Silent == nil || v.Silent.NewFor == nil || !v.scanned.Load() {
		return
	}
	if age := time.Since(time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))); age > 0 && age < v.Silent.RefreshEvery {
		return
	}
	n := &v.newcomers
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.found) < mostNewcomers {
		n.found[k] = v.Now()
	}
}

// NewSince returns for how long a file has been known that a scan found new though its mtime does not say so. false: it is not
// known to be new.
func (v *Inventory) NewSince(k Key) (time.Duration, bool) {
	n := &v.newcomers
	n.mu.Lock()
	defer n.mu.Unlock()
	found, ok := n.found[k]
	return time.Duration(v.Now()-found) * time.Second, ok
}

// ageNewcomers forgets those that are not new any more.
func (v *Inventory) ageNewcomers() {
	if v.Silent.NewFor == nil {
		return
	}
	n := &v.newcomers
	n.mu.Lock()
	defer n.mu.Unlock()
	now, newFor := v.Now(), v.Silent.NewFor()
	for k, found := range n.found {
		if time.Duration(now-found)*time.Second >= newFor {
			delete(n.found, k)
		}
	}
}
