package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// sharedHost is a host in a test, whose page service is on a directory that other hosts share.
type sharedHost struct {
	*pageService
	url   string
	log   *strings.Builder
	files *pageFiles
}

// sharedPlace makes the state of a host.
func sharedPlace(t *testing.T, data, name string) pagesPlace {
	t.Helper()
	at := pagesPlace{data: data, host: filepath.Join(data, tree.StateName, hostsDir, name), me: hostID{Identity: name, Named: true, Host: name}, shared: true}
	if err := os.MkdirAll(at.host, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeHostID(at.host, at.me); err != nil {
		t.Fatal(err)
	}
	return at
}

func startShared(t *testing.T, data, name string) (*sharedHost, error) {
	t.Helper()
	h := &sharedHost{log: &strings.Builder{}}
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Drain: patience, Log: slog.New(slog.NewTextHandler(h.log, nil))}
	s, err := startPages(t.Context(), sharedPlace(t, data, name), p, nil)
	if err != nil {
		return nil, err
	}
	h.pageService, h.url = s, "http://"+s.addresses()[0].Where
	return h, nil
}

func (h *sharedHost) end(t *testing.T) {
	t.Helper()
	if err := h.stop(); err != nil {
		t.Error(err)
	}
}

// TestTwoHostsWithoutEtcd: of the page services of two hosts on a shared directory only one runs; the other one says what to configure. The next one that runs
// knows of no key if another's has run since, and gives no page out that somebody may use.
func TestTwoHostsWithoutEtcd(t *testing.T) {
	data := t.TempDir()
	a, err := startShared(t, data, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]string{
		{"/0/initialize", `{"num_pages":2}`}, {"/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`}, {"/0/confirm_write", `{"written_keys_to_confirm":[["K",0]]}`},
	} {
		if status, answer := post(t, a.url+r[0], r[1]); status/100 != 2 {
			t.Fatal(r, status, answer)
		}
	}
	_, err = startShared(t, data, "b")
	if !errors.Is(err, errOtherPages) || !strings.Contains(err.Error(), "that of a (a, pid") || !strings.Contains(err.Error(), "--pages-store etcd://") || !strings.Contains(err.Error(), "--pages-listen off") {
		t.Errorf("a second page service: %v", err)
	}
	var said strings.Builder
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Optional: true, Log: slog.New(slog.NewTextHandler(&said, nil))}
	if s, err := pagesOf(t.Context(), sharedPlace(t, data, "b"), p, nil); s != nil || err != nil || !strings.Contains(said.String(), "--pages-store etcd://") {
		t.Errorf("an optional one: %v %v\n%s", s, err, &said)
	}
	if _, err := startShared(t, data, "a"); err == nil || !strings.Contains(err.Error(), "another kv3fs of this host") {
		t.Errorf("twice on one host: %v", err)
	}
	a.end(t)

	// Back on the same host, all is there.
	if a, err = startShared(t, data, "a"); err != nil {
		t.Fatal(err)
	}
	if _, answer := post(t, a.url+"/0/exists", `{"keys":["K"]}`); answer != `{"exists":[true]}` {
		t.Error(answer)
	}
	a.end(t)

	b, err := startShared(t, data, "b")
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := post(t, b.url+"/0/initialize", `{"num_pages":2}`); status != 204 {
		t.Error(status, answer)
	}
	b.end(t)
	if a, err = startShared(t, data, "a"); err != nil {
		t.Fatal(err)
	}
	if _, answer := post(t, a.url+"/0/exists", `{"keys":["K"]}`); answer != `{"exists":[false]}` {
		t.Errorf("%s, though another host's index has been used since", answer)
	}
	if _, answer := post(t, a.url+"/0/reserve_and_allocate_page_indices", `{"keys":[["L",""]]}`); answer != `{"indices":[[false,-1]]}` {
		t.Errorf("%s: a page that another host's clients may use", answer)
	}
	a.end(t)
	if !strings.Contains(a.log.String(), "host b has been used since") {
		t.Error(a.log)
	}
}

// TestUnknownOwner: where no host has noted whose index was used last, another host's index makes one's own doubtful, whatever the
// data directory is called.
func TestUnknownOwner(t *testing.T) {
	data := filepath.Join(t.TempDir(), "of[1]*")
	if err := os.MkdirAll(filepath.Join(data, tree.StateName, hostsDir, "other", pagesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if cause := (pagesOwner{}).distrust(data, "mine", ""); !strings.Contains(cause, "another host") {
		t.Errorf("want a cause: %q", cause)
	}
}

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// TestPagesTakenOver: a page service whose lease another host has taken, while it was stopped, answers nothing more.
func TestPagesTakenOver(t *testing.T) {
	data := t.TempDir()
	a := sharedPlace(t, data, "a")
	if _, err := dataID(data); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	const period = time.Second
	mine, err := takePages(t.Context(), data, a.me, true, period, quiet)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "it can answer", mine.valid)
	close(mine.stop) // as if it was stopped: nobody renews it
	<-mine.done
	b := sharedPlace(t, data, "b")
	began := time.Now()
	theirs, err := takePages(t.Context(), data, b.me, true, period, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if mine.valid() {
		t.Error("two hosts answer")
	}
	if took := time.Since(began); took < period/2 {
		t.Errorf("taken over after %v", took)
	}
	mine.stop, mine.done = make(chan struct{}), make(chan struct{})
	go mine.keep() // continued
	select {
	case <-mine.over:
	case <-time.After(patience):
		t.Error("it did not notice")
	}
	await(t, "the other one answers", theirs.valid)
	if mine.valid() {
		t.Error("two hosts answer")
	}
	for _, of := range []*tenancy{mine, theirs} {
		if err := of.end(); err != nil {
			t.Error(err)
		}
	}

	// A host that has died and starts again does not wait for its own lease.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if mine, err = takePages(ctx, data, a.me, true, time.Hour, quiet); err != nil {
		t.Fatal(err)
	}
	again, err := takePages(ctx, data, a.me, true, time.Hour, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []*tenancy{mine, again} {
		if err := of.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestEtcdsDirectory: an index of a host's own does not touch what one in etcd hands out.
func TestEtcdsDirectory(t *testing.T) {
	data := t.TempDir()
	at := sharedPlace(t, data, "a")
	if err := makeSharedPages(data, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := (pagesOwner{Store: "etcd://e:2379/kv3fs/1"}).note(data); err != nil {
		t.Fatal(err)
	}
	for _, shared := range []bool{true, false} {
		at.shared = shared
		_, err := startPages(t.Context(), at, Pages{Log: slog.New(slog.DiscardHandler)}, nil)
		if err == nil || !strings.Contains(err.Error(), "is in etcd://e:2379/kv3fs/1: give that with --pages-store") {
			t.Errorf("shared %v: %v", shared, err)
		}
	}
}

// TestDataID: hosts that start at once agree on the identity of a data directory, with links and without; it stays.
func TestDataID(t *testing.T) {
	for name, prepare := range map[string]func(file string) error{
		"links":    func(string) error { return nil },
		"no links": func(file string) error { return writeNewID(file) },
	} {
		data := t.TempDir()
		file := filepath.Join(data, tree.StateName, dataIDName)
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		var ids sync.Map
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if err := prepare(file); err != nil && !errors.Is(err, os.ErrExist) {
					t.Error(err)
				}
				id, err := dataID(data)
				if err != nil {
					t.Error(err)
				}
				ids.Store(id, true)
			})
		}
		wg.Wait()
		n := 0
		ids.Range(func(any, any) bool { n++; return true })
		left, err := filepath.Glob(file + "*")
		if n != 1 || err != nil || len(left) != 1 {
			t.Errorf("%s: %d identities, files %v", name, n, left)
		}
	}
	data := t.TempDir()
	if err := os.MkdirAll(filepath.Join(data, tree.StateName), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(data, tree.StateName, dataIDName)
	if err := os.WriteFile(file, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dataID(data); err == nil || !strings.Contains(err.Error(), "remove it") || errors.Is(err, io.EOF) {
		t.Errorf("half of an identity: %v", err)
	}
}
