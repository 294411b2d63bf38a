//go:build invariants

package invariants

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// DieVariable names a point and a number, as in "A2:17": the process kills itself when it passes the
// point for the 17th time.
const DieVariable = "KV3FS_TEST_DIE_AT"

type death struct {
	point string
	after atomic.Int64
}

var planned = sync.OnceValue(func() *death {
	point, after, _ := strings.Cut(os.Getenv(DieVariable), ":")
	d := &death{point: point}
	n, _ := strconv.ParseInt(after, 10, 64)
	d.after.Store(n)
	return d
})

// Reach says that the process passes a point at which a test may want it to be killed.
func Reach(point string) {
	if d := planned(); d.point == point && d.after.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it has arrived
	}
}
