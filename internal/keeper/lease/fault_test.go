package lease

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// While a directory's calls fail, now these, now those, never two hosts may change anything; nobody may for longer than
// half a period of failures; and once it works again one host gets the lease.
func TestFailingDirectory(t *testing.T) {
	d := faultdir.New(t)
	n := seed.New(t)
	var mu sync.Mutex // of faults, for the server's threads
	faults := rand.New(rand.NewPCG(n, 2))
	random := rand.New(rand.NewPCG(n, 1))
	hosts := []*sharer{newHost(t, d.Path, "a"), newHost(t, d.Path, "b")}
	ops := []string{"lookup", "getattr", "open", "create", "read", "write", "fsync", "readdir", "opendir", "unlink"}
	tick := func() {
		for _, h := range hosts {
			h.clock.at += period/6 + time.Duration(random.Int64N(int64(period/20)))
			if h.Token() == 0 {
				if _, err := h.Try(); err != nil && !errors.Is(err, syscall.EIO) {
					t.Fatal(err)
				}
			} else if err := h.Renew(); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
		}
	}
	may := func() (n int) {
		for _, h := range hosts {
			if h.Check() == nil {
				n++
			}
		}
		return n
	}
	held, failed := 0, 0
	for range 40 {
		bad := map[string]float64{}
		for range random.IntN(4) {
			bad[ops[random.IntN(len(ops))]] = random.Float64()
		}
		d.Fail(func(c faultdir.Call) syscall.Errno {
			mu.Lock()
			defer mu.Unlock()
			if faults.Float64() < bad[c.Op] {
				return syscall.EIO
			}
			return 0
		})
		for range 1 + random.IntN(8) {
			tick()
			switch n := may(); {
			case n > 1:
				t.Fatalf("%d hosts have the lease while %v fail", n, bad)
			case n == 1:
				held++
			default:
				failed++
			}
		}
	}
	t.Logf("somebody had the lease %d times of %d", held, held+failed)
	d.Fail(faultdir.EIO(ops...))
	for range 6 {
		tick()
	}
	if n := may(); n > 0 {
		t.Errorf("%d hosts may change what they cannot read", n)
	}
	d.Heal()
	for range 30 {
		tick()
	}
	if n := may(); n != 1 {
		t.Errorf("%d hosts have the lease of a directory that works again", n)
	}
}
