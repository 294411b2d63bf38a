package ringserver

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// A semaphore whose user has given it more memory than a page is not touched: whoever
// touches it waits while its user punches gigabytes out of it. It is repaired, and its user
// can use it again.
func TestGrownSemaphoreIsNotTouched(t *testing.T) {
	kernels(t, func(t *testing.T, many bool) {
		s := newSems(t, 4, many)
		uid := uint32(os.Getuid())
		sem := openLink(t, s, uid, wire.Normal)
		s.pin(semsKey{uid: uid})
		defer s.unpin(semsKey{uid: uid})
		f, err := os.OpenFile(sem.Path(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 8<<20); err != nil {
			t.Fatal(err)
		}
		sem.Post()
		w := s.waiter(wire.Normal)
		time.Sleep(2 * checkEvery)
		if uids := w.posted(nil); len(uids) != 0 {
			t.Error("a semaphore of 8 MiB was read")
		}
		leader := startLeader(w)
		defer leader.end()
		leader.await(t, uid) // once it is repaired
		leader.asleep(t)
		if sem.Grown() {
			t.Error("the semaphore still has 8 MiB")
		}
		sem.Post()
		leader.await(t, uid)
	})
}
