package pagehistory

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// engine has the requests of vLLM or SGLang about one key of rank 0.
type engine interface {
	initialize(ctx context.Context, numPages int) error
	reserve(ctx context.Context, key string) (page int64, present bool, err error)
	confirm(ctx context.Context, key string, page int64) error
	release(ctx context.Context, page int64) error
	locate(ctx context.Context, key string) (page int64, err error)
	// remove forgets a key; ok is false where the engine cannot.
	remove(ctx context.Context, key string) (ok bool, err error)
}

// caller sends requests to one host. It does not repeat them: each is one question.
type caller struct {
	url  string
	http *http.Client
}

func (c caller) post(ctx context.Context, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	w, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err = io.ReadAll(w.Body)
	switch {
	case err != nil:
		return err
	case w.StatusCode == http.StatusNoContent:
		return nil
	case w.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %.200s", path, w.Status, text)
	}
	return json.Unmarshal(text, answer)
}

type object map[string]any

// vllm is docs/spec/clients.md, 6.6.
type vllm struct{ caller }

func (e vllm) initialize(ctx context.Context, numPages int) error {
	return e.post(ctx, "/rank/0/initialize", object{"num_pages": numPages, "role": "worker"}, &struct{}{})
}

func (e vllm) reserve(ctx context.Context, key string) (page int64, present bool, err error) {
	var a struct{ Results [][2]any }
	err = e.post(ctx, "/keys/batch_allocate", object{"rank": 0, "keys": [][2]string{{key, ""}}}, &a)
	if err != nil {
		return none, false, err
	}
	number, ok := a.Results[0][1].(float64)
	if len(a.Results) != 1 || a.Results[0][0] != key || !ok {
		return none, false, fmt.Errorf("not an answer for %q: %v", key, a.Results)
	}
	return int64(number), false, nil
}

func (e vllm) confirm(ctx context.Context, key string, page int64) error {
	return e.confirmWrite(ctx, [][2]any{{key, page}}, []int64{})
}

func (e vllm) release(ctx context.Context, page int64) error {
	return e.confirmWrite(ctx, [][2]any{}, []int64{page})
}

func (e vllm) confirmWrite(ctx context.Context, written [][2]any, release []int64) error {
	return e.post(ctx, "/keys/confirm_write", object{"rank": 0, "confirmations": written, "pages_to_release": release}, nil)
}

func (e vllm) locate(ctx context.Context, key string) (int64, error) {
	var a struct{ Locations []*int64 }
	err := e.post(ctx, "/keys/get_locations", object{"rank": 0, "keys": []string{key}}, &a)
	return only(a.Locations, err)
}

func (vllm) remove(context.Context, string) (bool, error) { return false, nil }

// sglang is docs/spec/clients.md, 7.6.
type sglang struct{ caller }

func (e sglang) initialize(ctx context.Context, numPages int) error {
	return e.post(ctx, "/0/initialize", object{"num_pages": numPages}, nil)
}

func (e sglang) reserve(ctx context.Context, key string) (page int64, present bool, err error) {
	var a struct{ Indices [][2]any }
	err = e.post(ctx, "/0/reserve_and_allocate_page_indices", object{"keys": [][2]string{{key, ""}}}, &a)
	if err != nil {
		return none, false, err
	}
	if len(a.Indices) != 1 {
		return none, false, fmt.Errorf("not one answer: %v", a.Indices)
	}
	present, isBool := a.Indices[0][0].(bool)
	number, isNumber := a.Indices[0][1].(float64)
	if !isBool || !isNumber {
		return none, false, fmt.Errorf("not an answer: %v", a.Indices)
	}
	return int64(number), present, nil
}

func (e sglang) confirm(ctx context.Context, key string, page int64) error {
	return e.post(ctx, "/0/confirm_write", object{"written_keys_to_confirm": [][2]any{{key, page}}, "pages_to_release": []int64{}}, nil)
}

func (e sglang) release(ctx context.Context, page int64) error {
	return e.post(ctx, "/0/confirm_write", object{"written_keys_to_confirm": [][2]any{}, "pages_to_release": []int64{page}}, nil)
}

func (e sglang) locate(ctx context.Context, key string) (int64, error) {
	var a struct{ Indices []*int64 }
	err := e.post(ctx, "/0/get_page_indices", object{"keys": []string{key}}, &a)
	return only(a.Indices, err)
}

func (e sglang) remove(ctx context.Context, key string) (bool, error) {
	return true, e.post(ctx, "/0/delete_keys", object{"keys": []string{key}}, nil)
}

// only returns the page of an answer about one key.
func only(pages []*int64, err error) (int64, error) {
	switch {
	case err != nil:
		return none, err
	case len(pages) != 1:
		return none, fmt.Errorf("%d answers about one key", len(pages))
	case pages[0] == nil:
		return none, nil
	}
	return *pages[0], nil
}

// answerLimit is how long a client waits for an answer.
const answerLimit = 10 * time.Second
