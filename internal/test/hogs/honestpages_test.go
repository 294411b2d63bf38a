package hogs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// pages uses the page service as SGLang's connector does, with a namespace of its own.
type pages struct {
	base   string
	client *http.Client
}

// The client has pageGroups times 8 keys, and twice as many pages.
const pageGroups = 256

func connectPages(a honest) (session, error) {
	p := pages{a.Pages + "/ns/honest", &http.Client{Timeout: a.Limit, Transport: &http.Transport{}}}
	return p, p.post("/0/initialize", map[string]any{"num_pages": 2 * 8 * pageGroups}, nil)
}

func (p pages) close() error {
	p.client.CloseIdleConnections()
	return nil
}

// post sends a request, up to 4 times if the service is busy, with the pauses of the clients.
func (p pages) post(path string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for retry := 0; ; retry++ {
		status, text, err := p.once(path, encoded)
		if err != nil {
			return err
		}
		if status == http.StatusServiceUnavailable && retry < 3 {
			if retry > 0 {
				time.Sleep(300 * time.Millisecond << retry)
			}
			continue
		}
		if status >= 300 {
			return fmt.Errorf("%s: %d: %.200s", path, status, text)
		}
		if answer == nil {
			return nil
		}
		return json.Unmarshal(text, answer)
	}
}

func (p pages) once(path string, body []byte) (status int, text []byte, err error) {
	response, err := p.client.Post(p.base+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// call reserves pages for keys, confirms those that are new, and must find these pages.
func (p pages) call(n uint64) error {
	keys := make([]string, 8)
	wanted := make([][2]string, len(keys))
	for i := range keys {
		keys[i] = fmt.Sprintf("%064x", n%pageGroups*8+uint64(i))
		wanted[i][0] = keys[i]
	}
	var reserved struct{ Indices [][2]any }
	if err := p.post("/0/reserve_and_allocate_page_indices", map[string]any{"keys": wanted}, &reserved); err != nil {
		return err
	}
	if len(reserved.Indices) != len(keys) {
		return fmt.Errorf("%d pages for %d keys", len(reserved.Indices), len(keys))
	}
	written, seen := [][2]any{}, map[any]bool{}
	for i, r := range reserved.Indices {
		page, ok := r[1].(float64)
		if !ok || page < 0 {
			return fmt.Errorf("key %d has page %v", i, r[1])
		}
		if seen[page] {
			return fmt.Errorf("page %v is given twice: %w", page, wrongByte{})
		}
		seen[page] = true
		if r[0] != true { // it did not exist
			written = append(written, [2]any{keys[i], page})
		}
	}
	if err := p.post("/0/confirm_write", map[string]any{"written_keys_to_confirm": written, "pages_to_release": []int64{}}, nil); err != nil {
		return err
	}
	var found struct{ Indices []any }
	if err := p.post("/0/get_page_indices", map[string]any{"keys": keys}, &found); err != nil {
		return err
	}
	if len(found.Indices) != len(keys) {
		return fmt.Errorf("%d locations for %d keys", len(found.Indices), len(keys))
	}
	for i, page := range found.Indices {
		if page != nil && page != reserved.Indices[i][1] { // nil: evicted
			return fmt.Errorf("key %d is on page %v, was written to %v: %w", i, page, reserved.Indices[i][1], wrongByte{})
		}
	}
	return nil
}
