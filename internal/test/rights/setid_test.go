package rights

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// Set-id bits are cleared by whatever clears them directly, and by ring writes as by others,
// and stay where they stay directly. Everybody sees that at once.
func TestSetIDBits(t *testing.T) {
	if testing.Short() {
		t.Skip("needs daemons")
	}
	ways := []string{"write", "append", "late-write", "truncate", "open-truncate", "read", "ring-write", "ring-large", "late-ring-write",
		"fallocate", "keep-size", "zero-range", "punch-hole"}
	modes := []int64{0o4777, 0o2777, 0o6777, 0o2775, 0o6767, 0o2767, 0o0777, 0o4600}
	for _, route := range routes {
		t.Run(route.name, func(t *testing.T) {
			data := hostile.NewData(t)
			d := serve(t, data, route.flags...)
			for _, u := range []hostile.User{hostile.NewUser(t), root} {
				name := func(below string, way string, mode int64) string {
					return filepath.Join(below, fmt.Sprintf("%s-%o-%d", way, mode, u.ID))
				}
				direct := filepath.Join(data, "direct")
				if err := os.MkdirAll(direct, 0o755); err != nil {
					t.Fatal(err)
				}
				var below, through []step
				for _, way := range ways {
					for _, mode := range modes {
						for _, at := range []string{direct, data} {
							path := name(at, way, mode)
							if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
								t.Fatal(err)
							}
							if err := os.Chown(path, int(u.ID), int(u.ID)); err != nil {
								t.Fatal(err)
							}
							first := uint32(mode)
							if strings.HasPrefix(way, "late-") {
								first &^= unix.S_ISUID | unix.S_ISGID
							}
							if err := unix.Chmod(path, first); err != nil {
								t.Fatal(err)
							}
						}
						onDisk, onMount := name(direct, way, mode), name(d.Mount, way, mode)
						behind := name(data, way, mode)
						same := way
						switch way {
						case "ring-write", "ring-large":
							same = "write"
						case "late-ring-write":
							same = "late-write"
							const group = unix.S_ISGID | unix.S_IXGRP
							if u.ID == 0 || mode&unix.S_ISUID == 0 && mode&group != group {
								continue // nothing is cleared, whenever
							}
						}
						// The mode is asked for before, so that the kernel may have kept it.
						below = append(below, step{Op: "mode", Path: onDisk}, step{Op: same, Path: onDisk, Other: onDisk, N: mode}, step{Op: "mode", Path: onDisk})
						through = append(through, step{Op: "mode", Path: onMount}, step{Op: way, Path: onMount, Other: behind, N: mode}, step{Op: "mode", Path: onMount})
					}
				}
				want, got := do(t, u, d.Mount, below...), do(t, u, d.Mount, through...)
				cleared := 0
				for i := range want {
					if through[i].Op == "ring-large" {
						want[i].N = got[i].N
					}
					const group, groupExec = unix.S_ISGID, unix.S_IXGRP
					if want[i].N&(group|groupExec) == group && u.ID != 0 {
						// Once a mark for mandatory locking, without a meaning today. A member
						// of the group may keep it, and the kernel does not know who writes.
						want[i].N, got[i].N = want[i].N&^group, got[i].N&^group
					}
					if want[i] != got[i] {
						t.Errorf("uid %d: %s %s: %v (%o), directly %v (%o)", u.ID, through[i].Op, through[i].Path, got[i], got[i].N, want[i], want[i].N)
					}
					if i%3 == 2 && want[i] != want[i-2] {
						cleared++
					}
				}
				if u.ID != 0 && cleared < 10 || !slices.ContainsFunc(got, func(o outcome) bool { return o.N&0o6000 != 0 }) {
					t.Errorf("uid %d: %d modes were cleared: the test tests nothing", u.ID, cleared)
				}
			}
		})
	}
}
