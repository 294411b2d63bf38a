package ringserver

import (
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

// tidiers remove names from the /dev/shm of clients, beside everything else: a client can hold that up for as long as it likes. Who
// lists the directory into memory that it makes the kernel wait for holds the directory's lock.
type tidiers struct {
	places *quota.Quota // each may hold up a thread
	under  sync.WaitGroup
}

const mostTidiers = 128

func newTidiers() *tidiers { return &tidiers{places: quota.New(mostTidiers)} }

// do calls fn beside its caller, unless too many calls for that user are held up.
func (t *tidiers) do(uid uint32, fn func()) bool {
	if !t.places.Take(uid, 1) {
		return false
	}
	t.under.Go(func() {
		defer t.places.Return(uid, 1)
		fn()
	})
	return true
}

// wait waits until nothing is under way, though not for long. Nothing may begin meanwhile.
func (t *tidiers) wait() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.under.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
}
