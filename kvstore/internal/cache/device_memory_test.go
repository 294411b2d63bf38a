package cache_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// pinned counts the pinned memory of a device.
type pinned struct {
	mu   sync.Mutex
	now  map[string]int64 // bytes that are registered, and allocated
	ever map[string]int
	fail func(method string) error // may be nil
}

func newPinned() *pinned { return &pinned{now: map[string]int64{}, ever: map[string]int{}} }

func (p *pinned) device(o device.HostOptions) *device.Host {
	o.Memory = func(method string, sizeBytes int64) error {
		if p.fail != nil {
			if err := p.fail(method); err != nil {
				return err
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ever[method]++
		switch method {
		case "Register":
			p.now["registered"] += sizeBytes
		case "Unregister":
			p.now["registered"] -= sizeBytes
		case "AllocHost":
			p.now["allocated"] += sizeBytes
		case "FreeHost":
			p.now["allocated"] -= sizeBytes
		}
		return nil
	}
	return device.NewHost(o)
}

// left checks how much is registered and allocated.
func (p *pinned) left(t *testing.T, registered, allocated bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now["registered"] > 0 != registered || p.now["allocated"] > 0 != allocated || p.now["registered"] < 0 || p.now["allocated"] < 0 {
		t.Errorf("%d bytes are registered and %d allocated", p.now["registered"], p.now["allocated"])
	}
}

// refusing is a next store that takes the cache's memory, or fails to.
type refusing struct {
	kv.Store
	err error
}

func (r refusing) Register(string, []byte) error { return r.err }

// moveStaged loads more blocks onto the device than the cache has slots for, so that some are
// staged.
func moveStaged(t *testing.T, s *cache.Store, d *device.Host) error {
	t.Helper()
	var all []kv.Shard
	for n := range 12 {
		shards, _ := placed(d, small, key(n))
		all = append(all, shards...)
	}
	task := begin(t, s.Load, all)
	return task.Wait(bounded(t))
}

// All pinned memory is given back at Close, that for staging too.
func TestPinnedMemoryIsGivenBack(t *testing.T) {
	p := newPinned()
	d := p.device(device.HostOptions{})
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 12)...)
	s := mustNew(t, shelf, cache.Options{CapacityBytes: 4 * 4096, Device: d})
	if err := moveStaged(t, s, d); err != nil {
		t.Error(err)
	}
	p.left(t, true, true)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	p.left(t, false, false)
	if p.ever["Register"] != 1 || p.ever["Unregister"] != 1 {
		t.Errorf("registered and unregistered: %v", p.ever)
	}
}

// A cache that cannot be opened leaves nothing registered.
func TestMemoryThatCannotBeRegistered(t *testing.T) {
	broken := errors.New("no memory can be pinned")
	for name, c := range map[string]struct {
		device, next error
	}{"the device": {broken, nil}, "next": {nil, broken}} {
		p := newPinned()
		p.fail = func(method string) error { return only(method == "Register", c.device) }
		next := refusing{newShelf(small, newThings()), c.next}
		if s, err := cache.New(next, cache.Options{CapacityBytes: 4 * 4096, Device: p.device(device.HostOptions{})}); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Close()
			}
		}
		p.left(t, false, false)
	}
}

func only(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// Staging memory that cannot be allocated, or not in time, fails what needs it.
func TestStagingMemoryThatIsNotThere(t *testing.T) {
	broken := errors.New("no memory can be pinned")
	gate := make(chan struct{})
	for name, fail := range map[string]func() error{
		"fails": func() error { return broken },
		"hangs": func() error { <-gate; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPinned()
			p.fail = func(method string) error {
				if method == "AllocHost" {
					return fail()
				}
				return nil
			}
			d := p.device(device.HostOptions{})
			shelf := newShelf(small, newThings())
			shelf.things.fill(small, keys(0, 12)...)
			s := mustNew(t, shelf, cache.Options{CapacityBytes: 4 * 4096, Device: d, Timeout: 300 * time.Millisecond})
			if err := moveStaged(t, s, d); !errors.Is(err, broken) && !errors.Is(err, kv.ErrTimeout) {
				t.Errorf("loading: %v", err)
			}
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Errorf("Close: %v", err)
				}
			case <-time.After(patience):
				t.Error("Close hangs with the device")
			}
		})
	}
	close(gate)
}

// Close is bounded, also when the device hangs in it, and says so.
func TestCloseWhileTheDeviceHangs(t *testing.T) {
	for _, method := range []string{"Unregister", "FreeHost"} {
		gate := make(chan struct{})
		p := newPinned()
		p.fail = func(called string) error {
			if called == method {
				<-gate
			}
			return nil
		}
		d := p.device(device.HostOptions{})
		shelf := newShelf(small, newThings())
		shelf.things.fill(small, keys(0, 12)...)
		s := mustNew(t, shelf, cache.Options{CapacityBytes: 4 * 4096, Device: d, Timeout: 300 * time.Millisecond})
		if err := moveStaged(t, s, d); err != nil {
			t.Error(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		select {
		case err := <-closed:
			if !errors.Is(err, kv.ErrTimeout) {
				t.Errorf("%s hangs: Close: %v", method, err)
			}
		case <-time.After(patience):
			t.Errorf("Close hangs with %s", method)
		}
		close(gate)
	}
}

var _ kv.Registrar = refusing{}
