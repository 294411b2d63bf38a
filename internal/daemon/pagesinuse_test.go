package daemon

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// TestUnseenOwner: a host that leads and cannot see any more whose page index is in use answers nothing, since it may be another one by now, and has
// another host lead whose directory works.
func TestUnseenOwner(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t)
	members := etcd.Start(t, etcd.Options{Members: 1})
	for what, unseen := range map[string]func(d *faultdir.Dir){
		"fails": func(d *faultdir.Dir) {
			d.Fail(func(c faultdir.Call) syscall.Errno {
				if c.Name == ownerName {
					return syscall.EIO
				}
				return 0
			})
		},
		"hangs": func(d *faultdir.Dir) { d.Hang(func(c faultdir.Call) bool { return c.Name == ownerName }) },
		"is not there": func(d *faultdir.Dir) { // as beneath an unmounted file system
			d.Fail(func(c faultdir.Call) syscall.Errno {
				if c.Name == ".kv3fs" {
					return syscall.ENOENT
				}
				return 0
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := faultdir.New(t)
			store := fmt.Sprintf("etcd://%s/kv3fs/%s", members.Endpoints()[0], strings.ReplaceAll(what, " ", "-"))
			m := newMover(t, true)
			m.hosts["a"] = sharedPlace(t, d.Path, "a")
			a := m.start("a", store, false)
			stop := sync.OnceFunc(func() { d.Heal(); a.end(t) })
			defer stop()
			m.save(a, "K")

			unseen(d)
			await(t, "it answers nothing", func() bool {
				status, _ := post(t, a.url+"/0/exists", `{"keys":["K"]}`)
				return status == http.StatusServiceUnavailable
			})
			m.hosts["b"] = sharedPlace(t, d.Beneath, "b")
			b := m.start("b", store, false)
			defer b.end(t)
			m.has(b, "K", true)
			stop()
			m.has(b, "K", true)
		})
	}
}
