package hosts

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/usrbio"
)

// What engines are configured with.
const (
	// PageFile is rank 0's.
	PageFile   = Mount + "/hf3fs_vllm_data_file_0"
	pageBytes  = 64 << 10
	numPages   = 4096
	batchPages = 8
	// reserve is kv3fs's --pages-reserve.
	reserve = time.Minute
)

// Engine starts a process on a host that saves and loads as a worker of vLLM's HF3FSKVConnector does (docs/spec/clients.md, 6): it gets pages from the page service at
// 127.0.0.1:18000, moves their bytes through rings, eight at a time, and confirms. It repeats nothing. Asked "save KEY..." or "load KEY...", it answers
//
//   - "ok": every key is saved, or was found and had its bytes;
//   - "miss": the page service does not know one of them;
//   - "unavailable", and why: there was no answer from the page service, or 5xx, or 409, or it has no page now;
//   - "sick", and an errno: a ring's request ended with EIO or ETIMEDOUT;
//   - "wrong", and what: all that must never be.
func (h *Hosts) Engine(host int) *Process {
	h.t.Helper()
	return h.begin(host, "engine", PageFile)
}

// serveEngine makes or opens the page file, as every worker does when it starts, and keeps it registered.
func serveEngine(path string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(numPages * pageBytes); err != nil {
		return err
	}
	m, err := usrbio.Open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	e := &engine{}
	if e.iov, err = m.NewIov(ctx, batchPages*pageBytes, usrbio.IovOptions{}); err != nil {
		return err
	}
	if e.reads, err = m.NewRing(ctx, usrbio.RingOptions{Entries: batchPages}); err != nil {
		return err
	}
	if e.writes, err = m.NewRing(ctx, usrbio.RingOptions{Entries: batchPages, Write: true}); err != nil {
		return err
	}
	if e.file, err = m.Register(ctx, f); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, keys, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(e.answer(what, strings.Fields(keys)))
	}
	return nil
}

type engine struct {
	iov           *usrbio.Iov
	reads, writes *usrbio.Ring
	file          *usrbio.File
}

var errMiss = errors.New("miss")

// unavailable is what the page service did not answer, or not now.
type unavailable struct{ error }

func (e *engine) answer(what string, keys []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	do := e.load
	if what == "save" {
		do = e.save
	}
	err := post(ctx, "/rank/0/initialize", object{"num_pages": numPages, "role": "worker"}, nil) // a repeat changes nothing
	for batch := range slices.Chunk(keys, batchPages) {
		if err == nil {
			err = do(ctx, batch)
		}
	}
	switch text := strings.ReplaceAll(fmt.Sprint(err), "\n", " "); {
	case err == nil:
		return "ok"
	case errors.Is(err, errMiss):
		return "miss"
	case errors.As(err, new(unavailable)):
		return "unavailable: " + text
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ETIMEDOUT):
		return "sick: " + text
	default:
		return "wrong: " + text
	}
}

func (e *engine) save(ctx context.Context, keys []string) error {
	ask := make([][2]string, len(keys))
	for i, key := range keys {
		ask[i][0] = key
		copy(e.place(i), content(key))
	}
	reserved := time.Now()
	var a struct{ Results [][2]any }
	if err := post(ctx, "/keys/batch_allocate", object{"rank": 0, "keys": ask}, &a); err != nil {
		return err
	}
	pages, written := make([]int64, len(keys)), make([][2]any, len(keys))
	for i, key := range keys {
		if len(a.Results) != len(keys) || a.Results[i][0] != key {
			return fmt.Errorf("allocated %v for %v", a.Results, keys)
		}
		page, ok := a.Results[i][1].(float64)
		switch {
		case !ok:
			return fmt.Errorf("allocated %v for %s", a.Results[i], key)
		case page < 0: // a host that has just taken over gives out those only that were kept free
			return unavailable{fmt.Errorf("no page for %s", key)}
		}
		pages[i], written[i] = int64(page), [2]any{key, int64(page)}
	}
	confirmation := object{"rank": 0, "confirmations": written, "pages_to_release": []int64{}}
	failed := e.transfer(ctx, e.writes, pages)
	if failed == nil && time.Since(reserved) > reserve {
		failed = unavailable{errors.New("this machine is so slow that the reservation has ended")}
	}
	if failed != nil {
		confirmation = object{"rank": 0, "confirmations": [][2]any{}, "pages_to_release": pages}
	}
	err := post(ctx, "/keys/confirm_write", confirmation, nil)
	if failed != nil {
		return failed
	}
	return err
}

func (e *engine) load(ctx context.Context, keys []string) error {
	var a struct{ Locations []*int64 }
	if err := post(ctx, "/keys/get_locations", object{"rank": 0, "keys": keys}, &a); err != nil {
		return err
	}
	if len(a.Locations) != len(keys) {
		return fmt.Errorf("%d locations of %d keys", len(a.Locations), len(keys))
	}
	pages := make([]int64, len(keys))
	for i, page := range a.Locations {
		if page == nil {
			return errMiss
		}
		pages[i] = *page
	}
	clear(e.iov.Bytes())
	if err := e.transfer(ctx, e.reads, pages); err != nil {
		return err
	}
	for i, key := range keys {
		if !bytes.Equal(e.place(i), content(key)) {
			return fmt.Errorf("page %d has other bytes than those of %s", pages[i], key)
		}
	}
	return nil
}

// transfer moves the pages of the file from or to their places in the iov.
func (e *engine) transfer(ctx context.Context, ring *usrbio.Ring, pages []int64) error {
	all := make([]usrbio.Request, len(pages))
	for i, page := range pages {
		all[i] = usrbio.Request{File: e.file, FileOffset: page * pageBytes, Iov: e.iov, IovOffset: int64(i) * pageBytes, Bytes: pageBytes}
	}
	if err := ring.Do(ctx, all); err != nil {
		return err
	}
	for _, q := range all {
		if q.Result != pageBytes {
			return fmt.Errorf("the page at %d: result %d: %w", q.FileOffset, q.Result, q.Err())
		}
	}
	return nil
}

func (e *engine) place(i int) []byte { return e.iov.Bytes()[i*pageBytes : (i+1)*pageBytes] }

// content is what the page of a key has, and no other page.
func content(key string) []byte {
	page := make([]byte, pageBytes)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(key))).Read(page) // never an error
	return page
}

type object map[string]any

// post asks this host's page service.
func post(ctx context.Context, path string, body object, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:18000"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return unavailable{err}
	}
	defer w.Body.Close()
	said, err := io.ReadAll(w.Body)
	switch {
	case err != nil:
		return unavailable{err}
	case w.StatusCode >= 500, w.StatusCode == http.StatusConflict: // the latter after the process has stood still
		return unavailable{fmt.Errorf("%s: %s: %.300s", path, w.Status, said)}
	case w.StatusCode >= 300:
		return fmt.Errorf("%s: %s: %.300s", path, w.Status, said)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(said, answer)
}
