package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// What a daemon answers as metrics is well formed, whatever it serves and however hostile names are, and clients that do not
// read what they have asked for do not keep rings from working.
func TestMetricsAreWellFormed(t *testing.T) {
	requireFUSE(t)
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		daemontest.NotTested(t, "scripts/need test installs promtool")
	}
	for name, flags := range map[string][]string{
		"everything":                 {"--pages-listen", "unix:" + filepath.Join(t.TempDir(), "pages"), "--capacity", "1GiB"},
		"no keeper, no page service": {"--pages-listen", "off"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := binary(t)
			d := runUntil(t, bin, "msg=serving ", append([]string{"serve", "--data", t.TempDir(), "--mount", filepath.Join(t.TempDir(), "mnt"), "--drain", "1s", "--admin-listen", "127.0.0.1:0"}, flags...)...)
			at := adminURL(t, d)
			point := regexp.MustCompile(`msg=serving .*mount=(\S+)`).FindStringSubmatch(d.said())[1]
			if _, err := os.Stat(filepath.Join(point, "a\"b\n\xff\\@1@0@1a2b3c4d5e6f7081@half.data")); err == nil {
				t.Fatal("there is a block that nobody has made")
			}
			hostile := filepath.Join(point, "x\"\n\xff\\y", "z{le=\"1\"} 7")
			if err := os.MkdirAll(hostile, 0o755); err != nil {
				t.Fatal(err)
			}
			for range 6 { // more than may be answered at once
				slow, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer slow.Close()
				if _, err := fmt.Fprintf(slow, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.Command(bin, "probe", "ring", hostile).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			status, text := ask(t, at+"/metrics")
			for end := time.Now().Add(time.Minute); status == http.StatusServiceUnavailable && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				status, text = ask(t, at+"/metrics") // the slow ones' are still being collected
			}
			if status != 200 || !strings.Contains(text, `kv3fs_ring_bytes_total{direction="write",directory="/x\"\n?\\y/z{le=\"1\"} 7"} 4096`) || !strings.Contains(text, `kv3fs_ring_client_bytes_total{direction="write",process=`) {
				t.Errorf("%d: the hostile directory is not there: %s", status, text)
			}
			check := exec.Command(promtool, "check", "metrics")
			check.Stdin = strings.NewReader(text)
			if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
