package fuseserver

import (
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func TestOperations(t *testing.T) {
	o := newOperations(nil)
	for _, st := range []fuse.Status{fuse.OK, fuse.ENOENT, fuse.ENOENT, fuse.Status(unix.EXDEV)} {
		o.note(opRename, time.Now(), &st)
	}
	m := Mount{operations: o}
	for _, one := range m.Operations() {
		want := map[string]int64{"rename": 4}[one.Name]
		if one.Name == "" || one.Took.Total() != want {
			t.Errorf("%q: %d requests, want %d", one.Name, one.Took.Total(), want)
		}
		for _, f := range one.Failed {
			is := map[unix.Errno]int64{unix.ENOENT: want / 2, 0: want / 4}[f.Errno]
			if f.Requests != is {
				t.Errorf("%s, errno %d: %d, want %d", one.Name, f.Errno, f.Requests, is)
			}
		}
	}
}
