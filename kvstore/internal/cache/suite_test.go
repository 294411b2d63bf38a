package cache_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/internal/ucmtest"
)

func options(o storesuite.Options) cache.Options {
	slot := (o.Layout.BlockBytes + 4095) / 4096 * 4096
	return cache.Options{CapacityBytes: 2 * int64(o.Blocks) * slot, Namespace: o.Namespace, Timeout: 20 * time.Second}
}

func mustNew(t tb, next kv.Store, o cache.Options) *cache.Store {
	t.Helper()
	s, err := cache.New(next, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Over Empty the cache is a store that holds what fits.
func TestSuiteOverEmpty(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{Brief: !atNight(), Open: func(t testing.TB, _ string, o storesuite.Options) kv.Store {
		return mustNew(t, empty.New(o.Layout), options(o))
	}})
}

// perDir has the things of each of a test's directories, which outlive stores.
type perDir map[string]*things

func (p perDir) of(dir string, ns kv.Fingerprint) *things {
	at := dir + ns.String()
	if p[at] == nil {
		p[at] = newThings()
	}
	return p[at]
}

func TestSuite(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, storesuite.Subject{Durable: true, Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
		return mustNew(t, newShelf(o.Layout, dirs.of(dir, o.Namespace)), options(o))
	}})
}

// late returns a device whose memory is the host's, and that reorders: each copy of a few
// takes its time.
func late() *device.Host {
	var n atomic.Int64
	return device.NewHost(device.HostOptions{Before: func(device.Copy) error {
		if n.Add(1)%5 == 0 {
			time.Sleep(200 * time.Microsecond)
		}
		return nil
	}})
}

// atNight reports whether every suite is to run whole.
func atNight() bool { return os.Getenv("KV3FS_SUITES") == "all" }

// onDevice has the suite's shards in memory of a device that is late.
func onDevice(s storesuite.Subject, open func(t testing.TB, dir string, o storesuite.Options, d device.Device) kv.Store) storesuite.Subject {
	d := late()
	s.Brief = !atNight()
	s.Open = func(t testing.TB, dir string, o storesuite.Options) kv.Store { return open(t, dir, o, d) }
	return storesuite.OnDevice(s, func(storesuite.Store) device.Device { return d })
}

func TestSuiteOnDevice(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, onDevice(storesuite.Subject{Durable: true}, func(t testing.TB, dir string, o storesuite.Options, d device.Device) kv.Store {
		c := options(o)
		c.Device = d
		return mustNew(t, newShelf(o.Layout, dirs.of(dir, o.Namespace)), c)
	}))
}

// Nearly everything goes through staging memory.
func TestSuiteOnDeviceInLittleMemory(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, onDevice(storesuite.Subject{Durable: true}, func(t testing.TB, dir string, o storesuite.Options, d device.Device) kv.Store {
		c := options(o)
		c.Device = d
		c.CapacityBytes /= 64
		return unbounded{mustNew(t, newShelf(o.Layout, dirs.of(dir, o.Namespace)), c)}
	}))
}

// Memory is so small that nearly everything bypasses it or is evicted at once.
func TestSuiteInLittleMemory(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, storesuite.Subject{Durable: true, Brief: !atNight(), Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
		c := options(o)
		c.CapacityBytes /= 64
		return unbounded{mustNew(t, newShelf(o.Layout, dirs.of(dir, o.Namespace)), c)}
	}})
}

// unbounded is a cache that reports neither a capacity nor how many blocks it holds: the
// chain holds more.
type unbounded struct{ kv.Store }

func (u unbounded) Stats() kv.Stats {
	s := u.Store.Stats()
	s.CapacityBytes, s.Blocks = 0, -1
	return s
}

// The cache's memory is registered with next.
func TestSuiteOverRegistrar(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, storesuite.Subject{Durable: true, Brief: !atNight(), Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
		return mustNew(t, fault.New(newShelf(o.Layout, dirs.of(dir, o.Namespace))), options(o))
	}})
}

// Damaged files of next are misses through the cache, too.
func TestSuiteOverFiles(t *testing.T) {
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			if direct && !atNight() {
				t.Skip("the files differ, the cache does not")
			}
			storesuite.Run(t, storesuite.Subject{
				Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
					next, err := files.Open(files.Options{
						Dirs: []string{dir}, Layout: o.Layout, Namespace: o.Namespace, Streams: 4, DirectIO: direct,
					})
					if err != nil {
						t.Fatal(err)
					}
					c := options(o)
					c.CapacityBytes /= 8
					return unbounded{mustNew(t, next, c)}
				},
				Durable: true, Damage: ucmtest.Damage, Verified: true,
			})
		})
	}
}
