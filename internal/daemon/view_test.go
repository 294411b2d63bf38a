package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/logging"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// shownDaemon runs a daemon in this process that has everything that is shown, until the test ends.
func shownDaemon(t *testing.T, change func(*Config)) (mount string, c *admin.Client) {
	t.Helper()
	daemontest.NeedMounts(t)
	dir := t.TempDir()
	config := Config{
		Version: "test", DataDir: filepath.Join(dir, "data"), MountPoint: filepath.Join(dir, "mnt"), Mount: fuseserver.Options{Cluster: "shown"}, Settings: settings.Defaults(),
		Drain: patience, Checksums: true, Keeping: Keeping{Capacity: keeper.Limit{Bytes: 1 << 30}},
		Pages: Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Drain: patience, Log: slog.New(slog.DiscardHandler)},
		Admin: AdminWeb{Address: "127.0.0.1:0"}, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- Run(ctx, config, func(point string) { ready <- point }) }()
	select {
	case mount = <-ready:
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	noPolling(t, filepath.Join(mount, "polled"))
	sockets, err := filepath.Glob(filepath.Join(config.DataDir, ".kv3fs", "hosts", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if c, err = admin.Dial(t.Context(), sockets, patience); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return mount, c
}

// get returns the answer at an address of the daemon.
func get(t *testing.T, method, url, body string) (int, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	h := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := h.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, text
}

// check holds an answer against its description.
func check(t *testing.T, doc *openapi3.T, method, path string, status int, text []byte) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	op := doc.Paths.Value("/" + path).GetOperation(method)
	response := op.Responses.Status(status)
	if response == nil {
		response = op.Responses.Default()
	}
	content := response.Value.Content["application/json"]
	if content == nil { // the description itself
		return
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Errorf("%s: %v: %s", path, err, text)
	} else if err := content.Schema.Value.VisitJSON(v, openapi3.MultiErrors()); err != nil {
		t.Errorf("%s %s: %v\n%s", method, path, err, text)
	}
}

// What a daemon shows is what openapi.yaml says, with rings, files of odd names, quotas and all.
func TestAnswersAreAsDescribed(t *testing.T) {
	lines := logging.New(io.Discard, slog.LevelInfo, logging.Text)
	mount, c := shownDaemon(t, func(c *Config) {
		c.Lines, c.Log = lines, lines.Logger()
		c.Doctor = func(context.Context) ([]api.Finding, error) {
			return []api.Finding{{ID: "shm", Status: api.FindingWarning, Found: "<b>\x1b[31m", Needed: "more", Fix: "mount it"}, {ID: "ok", Status: api.FindingOK}}, nil
		}
	})
	for _, name := range []string{"models/meta-llama-SEP-Llama-3-8B@1@0@1f@half.data", "odd\xff/new\nline<b>\xfe", "odd\xff/\x1b[31mred"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(mount, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(mount, name), make([]byte, 5000), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	moveThrough(t, mount)
	ctx := t.Context()
	if err := errors.Join(c.SetQuota(ctx, "odd\xff", 1<<30), c.Pin(ctx, []string{"models/*"}, keeper.Origin{}), c.SetTTL(ctx, "odd\xff/*", time.Hour)); err != nil {
		t.Fatal(err)
	}
	var findings api.Findings
	if err := c.Show(ctx, "findings?wait=5", &findings); err != nil || findings.Warnings != 1 {
		t.Fatalf("%+v, %v", findings, err)
	}
	var status api.Status
	if err := c.Show(ctx, "status", &status); err != nil {
		t.Fatal(err)
	}
	if status.Mount != mount || status.Health != api.Warnings || status.Rings.WriteBytes != 4096 || status.Rings.Reads == 0 || status.Keeper == nil || status.Findings == nil || len(status.Findings.Top) != 1 || len(status.Addresses.Pages) != 1 {
		t.Errorf("%+v", status)
	}
	_, _ = get(t, http.MethodPost, status.Addresses.Pages[0]+"/v1/initialize", `{"rank":0,"num_pages":10}`) // whatever it says
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	at := status.Addresses.Admin + api.Prefix
	for path := range doc.Paths.Map() {
		path = strings.TrimPrefix(path, "/")
		code, text := get(t, http.MethodGet, at+path, "")
		if code != http.StatusOK || len(text) == 0 {
			t.Errorf("%s: %d %s", path, code, text)
		}
		check(t, doc, http.MethodGet, path, code, text)
		code, text = get(t, http.MethodGet, at+path+"?nonsense=1", "")
		if code != http.StatusBadRequest {
			t.Errorf("%s?nonsense=1: %d %s", path, code, text)
		}
		check(t, doc, http.MethodGet, path, code, text)
		if code, text = get(t, http.MethodPost, at+path, ""); code != http.StatusMethodNotAllowed || !bytes.Contains(text, []byte("POST")) {
			t.Errorf("POST %s: %d %s", path, code, text)
		}
	}
	for _, path := range []string{"history?window=24h", "usage?depth=0&most=1", "usage?path=odd%ff", "clients?most=1", "log?after=1", "usage?path=nothing", "usage?depth=-1", "history?window=1y", "status?x=1"} {
		code, text := get(t, http.MethodGet, at+path, "")
		check(t, doc, http.MethodGet, path, code, text)
	}
	// Everybody on this host reaches the address, so nothing is changed from there.
	code, text := get(t, http.MethodPut, at+"log-level", `{"level":"debug"}`)
	if check(t, doc, http.MethodPut, "log-level", code, text); code != http.StatusForbidden || lines.Level().Level() != slog.LevelInfo {
		t.Errorf("%d %s", code, text)
	}
	var usage api.Usage
	if err := c.Show(ctx, "usage?path=odd%ff", &usage); err != nil || usage.Path != "odd\xff" || usage.Files != 2 {
		t.Errorf("%+v, %v", usage, err)
	}
	var nothing api.Usage
	if err := c.Show(ctx, "usage?path=nothing", &nothing); err == nil || !strings.Contains(err.Error(), `no directory "nothing"`) {
		t.Error(err)
	}
	var clients api.Clients
	if err := c.Show(ctx, "clients", &clients); err != nil {
		t.Error(err)
	}
}

// moveThrough writes 4096 bytes through a ring and reads them through another, which both stay there until the test ends.
func moveThrough(t *testing.T, mount string) {
	t.Helper()
	ctx := t.Context()
	m, err := usrbio.Open(ctx, mount)
	must(t, err)
	iov, err := m.NewIov(ctx, 1<<20, usrbio.IovOptions{})
	must(t, err)
	in, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 8})
	must(t, err)
	out, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 8, Write: true})
	must(t, err)
	f, err := os.Create(filepath.Join(mount, "moved"))
	must(t, err)
	file, err := m.Register(ctx, f)
	must(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		must(t, errors.Join(file.Close(ctx), f.Close(), in.Close(ctx), out.Close(ctx), iov.Close(ctx), m.Close(ctx)))
	})
	for _, ring := range []*usrbio.Ring{out, in} {
		one := []usrbio.Request{{File: file, Iov: iov, Bytes: 4096}}
		must(t, ring.Do(ctx, one))
		must(t, one[0].Err())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
