package capacity

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// memoryBytes returns what a daemon has in memory now, and the most it ever had.
func memoryBytes(t *testing.T, d *daemontest.Daemon) (now, most int64) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			most = kib << 10
		}
	}
	return now, most
}

// used returns what a daemon says that all files take, and -1 before it has seen all.
func used(t *testing.T, data string) int64 {
	t.Helper()
	c := dial(t, data)
	defer c.Close()
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !state.Scanned {
		return -1
	}
	return state.UsedBytes
}

// A daemon over many files, in one directory or in many, starts at once, knows all of them soon, says what they
// take within a second, and removes half of them, with little more memory than one without a
// capacity. With KV3FS_SOAK there are a million.
func TestManyFiles(t *testing.T) {
	files := 20_000
	if soak() {
		files = 1_000_000
	}
	for name, path := range map[string]func(n int) string{
		"in one directory": func(n int) string { return filepath.Join("kv", chunk(n)) },
		"in many directories": func(n int) string {
			return filepath.Join(fmt.Sprintf("%03x", n%4096), fmt.Sprintf("%03x%029x", n%4096, n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const each = 4096
			total := int64(files) * each
			disk := ownDisk(t, 2*total+(64<<20))
			old := time.Now().Add(-time.Hour)
			for n := range files {
				at := filepath.Join(disk, path(n))
				err := os.WriteFile(at, []byte{1}, 0o644)
				if os.IsNotExist(err) {
					if err = os.Mkdir(filepath.Dir(at), 0o755); err == nil {
						err = os.WriteFile(at, []byte{1}, 0o644)
					}
				}
				if err == nil {
					err = os.Chtimes(at, old, old)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			without := daemontest.ServeWith(t, daemontest.Options{Data: disk, Flags: []string{"--pages-listen", "off"}})
			_, base := memoryBytes(t, without)
			if err := without.Stop(); err != nil {
				t.Fatal(err)
			}
			capacity := func(bytes int64) *daemontest.Daemon {
				return daemontest.ServeWith(t, daemontest.Options{
					Data: disk, Flags: []string{"--capacity", strconv.FormatInt(bytes, 10), "--pages-listen", "off"},
				})
			}
			began := time.Now()
			d := capacity(total + total/2)
			ready := time.Since(began)
			eventually(t, "the end of the scan", func() bool { return used(t, disk) == total })
			scanned := time.Since(began)
			c := dial(t, disk)
			began = time.Now()
			var all keeper.Usage
			err := c.Usage(t.Context(), ".", 0, func(u keeper.Usage) error { all = u; return nil })
			du := time.Since(began)
			c.Close()
			if err != nil || all.Files != int64(files) || all.Bytes != total {
				t.Errorf("%d files of %d bytes, %v; want %d of %d", all.Files, all.Bytes, err, files, total)
			}
			now, most := memoryBytes(t, d)
			t.Logf("%d files: ready after %v, scanned after %v, du took %v; %d MiB of memory, at most %d, %d without a capacity",
				files, ready.Round(time.Millisecond), scanned.Round(time.Millisecond), du.Round(time.Microsecond), now>>20, most>>20, base>>20)
			if err := d.Stop(); err != nil {
				t.Fatal(err)
			}
			began = time.Now()
			d = capacity(total / 2)
			eventually(t, "the low watermark", func() bool {
				bytes := used(t, disk)
				return bytes >= 0 && bytes <= total/2*90/100
			})
			took := time.Since(began)
			left := used(t, disk)
			if left < total*4/10 {
				t.Errorf("%d bytes are left of %d: more were removed than needed", left, total)
			}
			now, most = memoryBytes(t, d)
			gone := (total - left) / each
			t.Logf("%d removed %v after the start, %.0f in a second; %d MiB of memory, at most %d", gone, took.Round(time.Millisecond), float64(gone)/took.Seconds(), now>>20, most>>20)
			if more := most - base; soak() && more > 100<<20 {
				t.Errorf("%d MiB more memory than without a capacity", more>>20)
			}
			if err := d.Stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
