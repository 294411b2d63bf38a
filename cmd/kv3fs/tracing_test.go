package main

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/usrbio"
)

// A collector gets spans of a real daemon's ring batches and page requests, those in the trace of whoever has asked; while one hangs, rings
// serve as ever.
func TestTracesOfDaemon(t *testing.T) {
	requireFUSE(t)
	var mu sync.Mutex
	var got strings.Builder
	collects := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // a daemon that was stopped
		}
		mu.Lock()
		defer mu.Unlock()
		got.WriteString(r.URL.Path + " ")
		got.Write(body) // texts and numbers of traces are in it as they are
	}))
	t.Cleanup(collects.Close)
	release, asked := make(chan struct{}), make(chan struct{}, 100)
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })

	const trace = "0123456789abcdef0123456789abcdef"
	id, err := hex.DecodeString(trace)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(to string) (*running, callers) {
		point := filepath.Join(t.TempDir(), "mnt")
		d := runUntil(t, binary(t), "msg=serving ", "serve", "--data", t.TempDir(), "--mount", point, "--drain", "1s", "--admin-listen", "off", "--pages-listen", "127.0.0.1:0", "--trace-otlp", to, "--trace-sample", "1")
		m, err := usrbio.Open(t.Context(), point)
		c := callers{t: t, mount: m}
		c.must(err)
		t.Cleanup(func() {
			if err := m.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		c.iov, err = m.NewIov(t.Context(), lookedPieceBytes, usrbio.IovOptions{})
		c.must(err)
		c.out, err = m.NewRing(t.Context(), usrbio.RingOptions{Entries: 4, Write: true})
		c.must(err)
		c.ringFile(filepath.Join(point, "file"), os.O_CREATE|os.O_RDWR, true, 0, 1, 2)
		return d, c
	}

	d, _ := serve(collects.URL)
	at := regexp.MustCompile(`msg="page service listens" address=(\S+)`).FindStringSubmatch(d.said())
	if at == nil {
		t.Fatal("no page service")
	}
	r, err := http.NewRequest(http.MethodPost, at[1]+"/0/exists", strings.NewReader(`{"keys":["a"]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Traceparent", "00-"+trace+"-0123456789abcdef-01")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	for _, want := range []string{"/v1/traces ", "service.name", "ring write", "queued", "moved", "kv3fs.bytes", "pages sglang/exists", string(id)} {
		await(t, want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(got.String(), want)
		})
	}

	_, c := serve(hangs.URL)
	<-asked
	f := c.open(filepath.Join(c.mount.Path(), "file"), os.O_RDWR)
	c.ring(f, true, make([]int, 1000)...) // more than wait for the collector
	c.must(f.Close())
}
