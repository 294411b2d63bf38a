package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// freeEngine is an engine with a page file, which it fills by itself.
type freeEngine struct {
	t      *testing.T
	client *http.Client
	file   *os.File
}

const freePages, freePageBytes = 100, 4096

func (e *freeEngine) post(path string, body, answer any) {
	e.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		e.t.Fatal(err)
	}
	r, err := e.client.Post("http://unix/0/"+path, "application/json", bytes.NewReader(b))
	if err != nil {
		e.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode/100 != 2 {
		e.t.Fatalf("%s: %s", path, r.Status)
	}
	if answer != nil {
		if err := json.NewDecoder(r.Body).Decode(answer); err != nil {
			e.t.Fatal(path, err)
		}
	}
}

// bytesOf are the bytes that the page of a key has.
func bytesOf(key string) []byte {
	return bytes.Repeat([]byte(key+";"), freePageBytes/(len(key)+1)+1)[:freePageBytes]
}

// save stores keys, and returns those that got a page.
func (e *freeEngine) save(keys ...string) (saved []string) {
	e.t.Helper()
	var body struct {
		Keys [][2]string `json:"keys"`
	}
	for _, key := range keys {
		body.Keys = append(body.Keys, [2]string{key, ""})
	}
	var got struct {
		Indices [][2]any `json:"indices"`
	}
	e.post("reserve_and_allocate_page_indices", body, &got)
	var written struct {
		Keys     [][2]any `json:"written_keys_to_confirm"`
		Released []int64  `json:"pages_to_release"`
	}
	written.Released = []int64{}
	for i, at := range got.Indices {
		if page := int64(at[1].(float64)); page >= 0 && at[0] == false {
			if _, err := e.file.WriteAt(bytesOf(keys[i]), page*freePageBytes); err != nil {
				e.t.Fatal(err)
			}
			written.Keys, saved = append(written.Keys, [2]any{keys[i], page}), append(saved, keys[i])
		}
	}
	if len(saved) > 0 {
		e.post("confirm_write", written, nil)
	}
	return saved
}

// load reads keys, and returns those that are there.
func (e *freeEngine) load(keys ...string) (found []string) {
	e.t.Helper()
	var got struct {
		Indices []*int64 `json:"indices"`
	}
	e.post("get_page_indices", map[string]any{"keys": keys}, &got)
	for i, page := range got.Indices {
		if page == nil {
			continue
		}
		b := make([]byte, freePageBytes)
		if _, err := e.file.ReadAt(b, *page*freePageBytes); err != nil {
			e.t.Fatal(err)
		}
		if !bytes.Equal(b, bytesOf(keys[i])) {
			e.t.Fatalf("page %d of %q has %q", *page, keys[i], b[:20])
		}
		found = append(found, keys[i])
	}
	return found
}

// A service whose file is full accepts a save right after it was killed, in pages that nobody uses. Without pages
// that are kept free it would protect all of them for as long as an engine may use them (here an hour).
func TestSavesRightAfterAKill(t *testing.T) {
	bin := binary(t)
	for _, c := range []struct {
		args []string
		want int
	}{{nil, 2}, {[]string{"--free", "0.1"}, 10}, {[]string{"--free", "0"}, 0}} {
		t.Run(strings.Join(append([]string{"serve"}, c.args...), " "), func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "s")
			e := &freeEngine{t: t, client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", socket)
				},
			}}}
			var err error
			if e.file, err = os.Create(filepath.Join(dir, "pages")); err != nil {
				t.Fatal(err)
			}
			defer e.file.Close()
			serve := func() *running {
				t.Helper()
				return runUntil(t, bin, "serving pages", append([]string{"pages", "serve", "--data", filepath.Join(dir, "data"), "--listen", "unix:" + socket, "--reserve", "1h"}, c.args...)...)
			}
			keysOf := func(name string, n int) (keys []string) {
				for i := range n {
					keys = append(keys, fmt.Sprint(name, " ", i))
				}
				return keys
			}

			service := serve()
			e.post("initialize", map[string]any{"num_pages": freePages}, nil)
			old := keysOf("old", 3*freePages)
			for batch := range slices.Chunk(old, 10) {
				if saved := e.save(batch...); len(saved) != len(batch) {
					t.Fatalf("of %q, only %q were saved", batch, saved)
				}
			}
			there := e.load(old...)
			if len(there) != freePages-c.want {
				t.Fatalf("%d keys are there, want %d", len(there), freePages-c.want)
			}
			if err := service.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-service.exited
			serve()

			out, err := exec.Command(bin, "pages", "stat", "--url", "unix:"+socket).Output()
			if lines := strings.Split(string(out), "\n"); err != nil || len(lines) < 2 ||
				!slices.Equal(strings.Fields(lines[0])[3:6], []string{"pages", "free", "kept"}) ||
				!slices.Equal(strings.Fields(lines[1])[3:6], []string{fmt.Sprint(freePages), fmt.Sprint(c.want), fmt.Sprint(c.want)}) {
				t.Errorf("%v:\n%s", err, out)
			}
			saved := e.save(keysOf("new", freePages)...)
			if len(saved) != c.want {
				t.Errorf("%d new keys were saved, want %d", len(saved), c.want)
			}
			for _, keys := range [][]string{there, saved} {
				if len(keys) > 0 && !slices.Equal(e.load(keys...), keys) {
					t.Errorf("of %q, some are lost", keys)
				}
			}
		})
	}
}
