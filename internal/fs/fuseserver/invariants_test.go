//go:build invariants

package fuseserver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// Each invariant of this package is broken once, and must panic.
func TestInvariants(t *testing.T) {
	open := newHandles()
	fh := open.add(1, openHandle{dir: &tree.Dir{}})
	open.take(fh)
	p := &passthrough{nodes: map[uint64]*route{7: {}}}
	for want, fn := range map[string]func(){
		"is released and not open":            func() { open.take(fh) },
		"a handle is 0 things":                func() { open.add(1, openHandle{}) },
		"node 7 is closed more often":         func() { p.close(7) },
		"node 8 is closed more often":         func() { p.close(8) },
		"for directory 3, which has no queue": func() { newNotifier(nil).work(3) },
	} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "invariant violated: ") || !strings.Contains(said, want) {
					t.Errorf("panicked with %q, want %q", said, want)
				}
			}()
			fn()
		}()
	}
}
