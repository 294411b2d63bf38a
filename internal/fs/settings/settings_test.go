package settings_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/settings"
)

const (
	daemon = 777
	alice  = 1000
	bob    = 2000
)

func options() settings.Options {
	o := settings.Defaults()
	o.DaemonUID = daemon
	return o
}

func get(t *testing.T, s *settings.Settings, uid uint32, key string) string {
	t.Helper()
	v, err := s.Get(uid, key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return v
}

func wantValue(t *testing.T, s *settings.Settings, uid uint32, key, want string) {
	t.Helper()
	if got := get(t, s, uid, key); got != want {
		t.Errorf("uid %d: %s is %s, want %s", uid, key, got, want)
	}
}

// Inode numbers depend on the order of the keys, and clients compare the defaults as
// raw text.
func TestKeysAndDefaults(t *testing.T) {
	want := []struct{ key, value string }{
		{"sys.storage.net_client.rdma_control.max_concurrent_transmission", "64"},
		{"sys.periodic_sync.enable", "true"},
		{"sys.periodic_sync.interval", "'30s'"},
		{"sys.periodic_sync.flush_write_buf", "true"},
		{"sys.io_worker_coros.hi", "8"},
		{"sys.io_worker_coros.lo", "8"},
		{"sys.max_jobs_per_ioring", "32"},
		{"sys.io_job_deq_timeout", "'1ms'"},
		{"usr.enable_read_cache", "true"},
		{"usr.readonly", "false"},
		{"usr.dryrun_bench_mode", "false"},
		{"usr.flush_on_stat", "true"},
		{"usr.sync_on_stat", "true"},
		{"usr.attr_timeout", "30.0"},
		{"usr.entry_timeout", "30.0"},
		{"usr.negative_timeout", "5.0"},
		{"usr.symlink_timeout", "5.0"},
	}
	s := settings.New(options())
	var keys []string
	for _, w := range want {
		keys = append(keys, w.key)
		wantValue(t, s, alice, w.key, w.value)
	}
	if got := settings.Keys(); !slices.Equal(got, keys) {
		t.Errorf("keys %q", got)
	}
	for _, name := range []string{"", "readonly", "usr.nope", "sys.readonly", "usr.readonly "} {
		if _, err := s.Get(alice, name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("get %q: %v", name, err)
		}
	}
}

// Which texts are values, and how they read back. Set accepts every text that Get
// returns.
func TestValues(t *testing.T) {
	const (
		flag     = "sys.periodic_sync.enable"
		count    = "sys.io_worker_coros.hi"
		interval = "sys.periodic_sync.interval"
		timeout  = "usr.attr_timeout"
		jobs     = "sys.max_jobs_per_ioring"
		rdma     = "sys.storage.net_client.rdma_control.max_concurrent_transmission"
	)
	for _, c := range []struct {
		key, text, want string
		err             error
	}{
		{flag, "false", "false", nil},
		{flag, " true\n", "true", nil},
		{flag, "'true'", "", syscall.EIO},
		{flag, "True", "", syscall.EIO},
		{flag, "1", "", syscall.EIO},
		{flag, "", "", syscall.EIO},

		{count, "0", "0", nil},
		{count, "+16", "16", nil},
		{count, "1_000", "1000", nil},
		{count, "0x10", "16", nil},
		{count, "010", "", syscall.EIO},
		{count, "8.0", "", syscall.EIO},
		{count, "'8'", "", syscall.EIO},
		{count, "-1", "", syscall.EINVAL},
		{count, "9223372036854775808", "", syscall.EIO},
		{jobs, "0", "", syscall.EINVAL},
		{jobs, "1", "1", nil},

		{timeout, "0.5", "0.5", nil},
		{timeout, "10", "10.0", nil},
		{timeout, "1e3", "1000.0", nil},
		{timeout, "-0.0", "0.0", nil},
		{timeout, "-1.0", "", syscall.EINVAL},
		{timeout, "inf", "", syscall.EIO},
		{timeout, "nan", "", syscall.EIO},
		{timeout, "0x1p4", "", syscall.EIO},
		{timeout, "1e999", "", syscall.EIO},
		{timeout, "5s", "", syscall.EIO},
		{timeout, "", "", syscall.EIO},

		{interval, "'30s'", "'30s'", nil},
		{interval, `"60s"`, "'1min'", nil},
		{interval, "1500ms", "'1500ms'", nil},
		{interval, "2h", "'2h'", nil},
		{interval, "1day", "'1day'", nil},
		{interval, "0s", "'0ns'", nil},
		{interval, "'30s\"", "", syscall.EIO},
		{interval, "'", "", syscall.EIO},
		{interval, "30", "", syscall.EIO},
		{interval, "s", "", syscall.EIO},
		{interval, "30 s", "", syscall.EIO},
		{interval, "1.5s", "", syscall.EIO},
		{interval, "30sec", "", syscall.EIO},
		{interval, "-1s", "", syscall.EINVAL},
		{interval, "9223372036854775807day", "", syscall.EIO},

		// 1 to twice the configured 64.
		{rdma, "0", "", syscall.EINVAL},
		{rdma, "1", "1", nil},
		{rdma, "128", "128", nil},
		{rdma, "129", "", syscall.EINVAL},
	} {
		s := settings.New(options())
		before := get(t, s, 0, c.key)
		err := s.Set(0, c.key, c.text)
		if err != c.err {
			t.Errorf("%s = %q: %v, want %v", c.key, c.text, err, c.err)
		}
		if c.err != nil {
			wantValue(t, s, 0, c.key, before)
			continue
		}
		wantValue(t, s, 0, c.key, c.want)
		if err := s.Set(0, c.key, c.want); err != nil {
			t.Errorf("%s: the text %s, which Get returned, is refused: %v", c.key, c.want, err)
		}
		wantValue(t, s, 0, c.key, c.want)
	}
}

// Upstream freezes all settings of a uid with its first set. Here one key is
// overridden, and the others still follow the daemon's.
func TestOwnValuesOverrideOneKey(t *testing.T) {
	s := settings.New(options())
	if err := s.Set(alice, "usr.attr_timeout", "1.5"); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(0, "sys.io_worker_coros.hi", "3"); err != nil {
		t.Fatal(err)
	}
	wantValue(t, s, alice, "usr.attr_timeout", "1.5")
	wantValue(t, s, alice, "sys.io_worker_coros.hi", "3")
	wantValue(t, s, bob, "usr.attr_timeout", "30.0")
	if err := s.Set(alice, "usr.negative_timeout", "0.25"); err != nil {
		t.Fatal(err)
	}
	wantValue(t, s, alice, "usr.attr_timeout", "1.5")
	wantValue(t, s, alice, "usr.negative_timeout", "0.25")
	wantValue(t, s, bob, "usr.negative_timeout", "5.0")
}

func TestWhoMaySet(t *testing.T) {
	s := settings.New(options())
	const jobs, mine = "sys.max_jobs_per_ioring", "usr.flush_on_stat"
	for _, c := range []struct {
		uid       uint32
		key, text string
		want      error
	}{
		{alice, jobs, "8", syscall.EPERM},
		{0, jobs, "8", nil},
		{daemon, jobs, "9", nil},
		{alice, mine, "false", nil},
		{1_000_000, mine, "false", nil},
		{1_000_001, mine, "false", syscall.EPERM},
		{1_000_001, jobs, "8", syscall.EPERM},
		{1_000_001, "usr.nope", "false", syscall.EINVAL},
		{alice, "flush_on_stat", "false", syscall.EINVAL},
	} {
		if err := s.Set(c.uid, c.key, c.text); err != c.want {
			t.Errorf("uid %d sets %s: %v, want %v", c.uid, c.key, err, c.want)
		}
	}
	wantValue(t, s, bob, jobs, "9")
}

// Each uid has its own read-only mode. None can turn off the daemon's.
func TestReadonly(t *testing.T) {
	s := settings.New(options())
	if err := s.Set(alice, "usr.readonly", "true"); err != nil {
		t.Fatal(err)
	}
	if !s.Readonly(alice) || s.Readonly(bob) {
		t.Errorf("alice %v, bob %v", s.Readonly(alice), s.Readonly(bob))
	}
	if err := s.Set(alice, "usr.readonly", "false"); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Readonly = true
	s = settings.New(o)
	for _, uid := range []uint32{0, alice, bob} {
		if !s.Readonly(uid) {
			t.Errorf("uid %d may write", uid)
		}
		wantValue(t, s, uid, "usr.readonly", "true")
		if err := s.Set(uid, "usr.readonly", "false"); err != syscall.EINVAL {
			t.Errorf("uid %d turns it off: %v", uid, err)
		}
		if err := s.Set(uid, "usr.readonly", "true"); err != nil {
			t.Errorf("uid %d turns it on: %v", uid, err)
		}
	}
}

func TestAccessors(t *testing.T) {
	o := options()
	o.AttrTimeout, o.EntryTimeout, o.NegativeTimeout, o.SymlinkTimeout = 100*time.Millisecond, 2*time.Second, -time.Second, 4*time.Second
	o.CheckRmRf = false
	s := settings.New(o)
	for what, pair := range map[string][2]any{
		"attr":     {s.AttrTimeout(alice), 100 * time.Millisecond},
		"entry":    {s.EntryTimeout(alice), 2 * time.Second},
		"negative": {s.NegativeTimeout(alice), time.Duration(0)},
		"symlink":  {s.SymlinkTimeout(alice), 4 * time.Second},
		"rm-rf":    {s.CheckRmRf(), false},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	wantValue(t, s, alice, "usr.attr_timeout", "0.1")
}

// The kernel's caches are shared: no uid can make it cache for longer than the
// daemon does. No number is too large to parse.
func TestTimeoutsAreBounded(t *testing.T) {
	o := options()
	o.EntryTimeout = math.MaxInt64
	s := settings.New(o)
	for _, key := range []string{"usr.attr_timeout", "usr.entry_timeout", "usr.negative_timeout", "usr.symlink_timeout"} {
		for _, text := range []string{"1e10", "1e300", "3600.5"} {
			if err := s.Set(alice, key, text); err != syscall.EINVAL {
				t.Errorf("%s = %s: %v, want EINVAL", key, text, err)
			}
		}
		if err := s.Set(alice, key, "3000.0"); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	wantValue(t, s, alice, "usr.attr_timeout", "3000.0")
	if a, e, n, l := s.AttrTimeout(alice), s.EntryTimeout(alice), s.NegativeTimeout(alice), s.SymlinkTimeout(alice); a != 30*time.Second ||
		e != 3000*time.Second || n != 5*time.Second || l != 5*time.Second {
		t.Errorf("timeouts %v, %v, %v, %v", a, e, n, l)
	}
	if got := s.EntryTimeout(bob); got != time.Hour {
		t.Errorf("daemon-wide entry timeout %v", got)
	}
}

// No concurrent set of many uids is lost; run it with -race.
func TestConcurrentSets(t *testing.T) {
	s := settings.New(options())
	var wg sync.WaitGroup
	for uid := range uint32(8) {
		wg.Go(func() {
			for i := range 200 {
				want := strconv.Itoa(i) + ".0"
				if err := s.Set(uid, "usr.attr_timeout", want); err != nil {
					t.Error(err)
				}
				if got, _ := s.Get(uid, "usr.attr_timeout"); got != want {
					t.Errorf("uid %d set %s and reads %s", uid, want, got)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkReadonly(b *testing.B) {
	s := settings.New(options())
	if err := s.Set(bob, "usr.readonly", "true"); err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Readonly(alice)
		}
	})
}
