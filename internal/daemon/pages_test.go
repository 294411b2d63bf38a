package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// patience bounds every wait for something that should happen soon.
const patience = 2 * time.Minute

// pagesOn runs a page service until stop and returns its URL.
func pagesOn(t *testing.T, data string) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Drain: patience, Log: slog.New(slog.DiscardHandler)}
	go func() {
		done <- RunPages(ctx, data, "", SharingAuto, p, func(at []httpserver.Address) { ready <- at[0].Where })
	}()
	select {
	case where := <-ready:
		url = "http://" + where
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	return url, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	w, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, _ := io.ReadAll(w.Body)
	return w.StatusCode, string(b)
}

// TestPagesFullDisk: with a full disk below the page index, changes return 503 and the
// service is not ready. Confirmed keys are found then and after a restart. The service
// continues once there is room again.
func TestPagesFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
			t.Fatal("not tested: a tmpfs: ", err)
		}
		t.Skip("not tested: a tmpfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	url, stop := pagesOn(t, dir)
	if status, answer := post(t, url+"/0/initialize", `{"num_pages":100000}`); status != 204 {
		t.Fatal(status, answer)
	}
	filler := filepath.Join(dir, "filler")
	fill := func() {
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for size := 1 << 16; size > 0; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
	}
	save := func(n int) int {
		key := fmt.Sprintf("%s%d", strings.Repeat("k", 2000), n)
		status, answer := post(t, url+"/0/reserve_and_allocate_page_indices", `{"keys":[["`+key+`",""]]}`)
		if status != 200 {
			return status
		}
		page := strings.TrimSuffix(strings.TrimPrefix(answer, `{"indices":[[false,`), `]]}`)
		status, _ = post(t, url+"/0/confirm_write", `{"written_keys_to_confirm":[["`+key+`",`+page+`]],"pages_to_release":[]}`)
		return status
	}
	if status := save(0); status != 204 {
		t.Fatal(status)
	}
	if status, answer := post(t, url+"/readyz", ""); status != 200 {
		t.Fatal(status, answer)
	}
	fill()
	confirmed := 1
	refused := false
	for ; confirmed < 2000 && !refused; confirmed++ {
		switch status := save(confirmed); status {
		case 204:
		case 503:
			refused = true
			confirmed--
		default:
			t.Fatal(status)
		}
	}
	if !refused {
		t.Fatal("a full disk accepted every write")
	}
	if status, answer := post(t, url+"/readyz", ""); status != 503 || !strings.Contains(answer, "cannot write") {
		t.Errorf("ready with a full disk: %d %s", status, answer)
	}
	allThere := func(when string) {
		t.Helper()
		for n := range confirmed {
			key := fmt.Sprintf("%s%d", strings.Repeat("k", 2000), n)
			if status, answer := post(t, url+"/0/exists", `{"keys":["`+key+`"]}`); status != 200 || answer != `{"exists":[true]}` {
				t.Fatalf("%s: key %d of %d: %d %s", when, n, confirmed, status, answer)
			}
		}
	}
	allThere("full")
	stop()
	url, stop = pagesOn(t, dir)
	defer func() { stop() }()
	allThere("full and restarted")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); save(confirmed) != 204; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the service does not continue with room on the disk")
		}
	}
	confirmed++
	allThere("with room again")
	if status, answer := post(t, url+"/readyz", ""); status != 200 {
		t.Errorf("not ready with room again: %d %s", status, answer)
	}
}

// TestPagesOptional: an address in use is an error, unless the page service is optional;
// then it is a warning that says why.
func TestPagesOptional(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var log strings.Builder
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: taken.Addr().String()}}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	if s, err := pagesOf(t.Context(), pagesPlace{host: t.TempDir()}, p, nil); s != nil || err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("required: %v, %v", s, err)
	}
	p.Optional = true
	if s, err := pagesOf(t.Context(), pagesPlace{host: t.TempDir()}, p, nil); s != nil || err != nil || !strings.Contains(log.String(), "--pages-listen") {
		t.Errorf("optional: %v, %v\n%s", s, err, &log)
	}
	if s, err := pagesOf(t.Context(), pagesPlace{host: t.TempDir()}, Pages{}, nil); s != nil || err != nil {
		t.Errorf("off: %v, %v", s, err)
	}
}

// TestPagesDamagedIndex: a damaged page index is an error, also of an optional page service,
// and the error says what to do. An empty file is one, too.
func TestPagesDamagedIndex(t *testing.T) {
	for _, content := range []string{strings.Repeat("no log ", 10000), ""} {
		host := t.TempDir()
		if err := os.MkdirAll(filepath.Join(host, pagesDir), 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(host, pagesDir, journal.FileName)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Optional: true, Log: slog.New(slog.DiscardHandler)}
		s, err := pagesOf(t.Context(), pagesPlace{host: host}, p, nil)
		if s != nil || err == nil {
			t.Fatalf("%d bytes: %v, %v", len(content), s, err)
		}
		for _, want := range []string{file, "stop the engines and move it away", "--pages-listen off"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: no %q", err, want)
			}
		}
	}
}

// TestPagesOneProcess: a second service on the same data names the process that has it,
// and leaves no listener behind.
func TestPagesOneProcess(t *testing.T) {
	data := t.TempDir()
	_, stop := pagesOn(t, data)
	defer stop()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	where := free.Addr().String()
	free.Close()
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: where}}, Log: slog.New(slog.DiscardHandler)}
	err = RunPages(t.Context(), data, "", SharingAuto, p, nil)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("%v", err)
	}
	again, err := net.Listen("tcp", where)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// The page index takes a small part of the memory by default, and never too little.
func TestPagesMemory(t *testing.T) {
	for meminfo, want := range map[string]int64{
		"MemTotal: 33554432 kB\n": 1 << 30,
		"MemTotal: 1048576 kB\n":  minPagesMemoryBytes,
		"":                        minPagesMemoryBytes,
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte(meminfo), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := pagesMemoryBytes(host.Host{Root: root}); got != want {
			t.Errorf("%q: %d bytes, want %d", meminfo, got, want)
		}
	}
}
