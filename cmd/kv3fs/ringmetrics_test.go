package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/doctor"
)

// The daemon's metrics count what clients move through rings, by directory: here the doctor's
// 4 KiB in the root, and the same in the directory of a model of vLLM's.
func TestRingMetrics(t *testing.T) {
	requireFUSE(t)
	bin := binary(t)
	socket := filepath.Join(t.TempDir(), "pages")
	s := serve(t, bin, t.TempDir(), "--pages-listen", "unix:"+socket)
	if r, _ := runDoctor(t, bin, "--mount", s.mount); finding(t, r, "ring").Status != doctor.OK {
		t.Fatalf("%+v", finding(t, r, "ring"))
	}
	model := filepath.Join(s.mount, "vllm", "llama")
	if err := os.MkdirAll(model, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := exec.Command(bin, "probe", "ring", model).CombinedOutput()
		var answer struct{ Elapsed time.Duration } // of what the probe found: it moved something
		if err == nil {
			err = gob.NewDecoder(bytes.NewReader(out)).Decode(&answer)
		}
		if err != nil || answer.Elapsed <= 0 {
			t.Fatalf("%v: %q", err, out)
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	reply, err := client.Get("http://localhost/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`kv3fs_ring_bytes_total{direction="read",directory="/vllm/llama"} 8192`, `kv3fs_ring_bytes_total{direction="write",directory="/vllm/llama"} 8192`,
		`kv3fs_ring_bytes_total{direction="read",directory="other"} 0`,
		`kv3fs_ring_request_seconds_count{direction="read",directory="/vllm/llama"} 2`,
		`kv3fs_ring_requests_failed_total{direction="read",directory="/vllm/llama",errno="EIO"} 0`,
		`kv3fs_ring_requests_failed_total{direction="write",directory="other",errno="other"} 0`,
		`kv3fs_ring_requests_failed_total{direction="read",directory="other",errno="ESTALE"} 0`,
		`kv3fs_ring_refused_total{errno="ENOMEM",what="iov"} 0`, // an alert sees the first one only if the series began before
	} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	for _, doctors := range []string{ // as many as it could try
		`kv3fs_ring_bytes_total{direction="read",directory="/"} (4096|8192)`, `kv3fs_ring_bytes_total{direction="write",directory="/"} (4096|8192)`,
		`kv3fs_ring_request_seconds_count{direction="write",directory="/"} [12]`,
	} {
		if !regexp.MustCompile(`(?m)^` + doctors + `$`).Match(text) {
			t.Errorf("no line %s in\n%s", doctors, text)
		}
	}
}
