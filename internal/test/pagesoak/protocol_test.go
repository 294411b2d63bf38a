package pagesoak

import (
	"context"
	"fmt"
	"time"
)

// protocol has the requests of an engine to the service.
type protocol interface {
	initialize(ctx context.Context, rank int, numPages int) error
	exists(ctx context.Context, rank int, keys []string) ([]bool, error)
	// locate returns none for keys without a page. Pages are leased from sent on.
	locate(ctx context.Context, rank int, keys []string) (pages []int64, sent time.Time, err error)
	// allocate returns none where there is no page. Pages are reserved from sent on. The
	// keys must be distinct.
	allocate(ctx context.Context, rank int, keys []string) (pages []int64, sent time.Time, err error)
	confirm(ctx context.Context, rank int, written []placed, release []int64) error
}

const none = -1

// placed is a key and its page.
type placed struct {
	key  string
	page int64
}

func pairs(keys []string) [][2]string {
	all := make([][2]string, len(keys))
	for i, key := range keys {
		all[i][0] = key
	}
	return all
}

func pairsOf(written []placed) [][2]any {
	all := make([][2]any, len(written))
	for i, w := range written {
		all[i] = [2]any{w.key, w.page}
	}
	return all
}

// orNone turns null into none.
func orNone(pages []*int64) []int64 {
	all := make([]int64, len(pages))
	for i, p := range pages {
		all[i] = none
		if p != nil {
			all[i] = *p
		}
	}
	return all
}

func wantLen(got, want int) error {
	if got != want {
		return fmt.Errorf("%d answers to %d keys", got, want)
	}
	return nil
}

// vllm implements docs/spec/clients.md, 6.6. A key exists when both ranks have it.
type vllm struct{ caller }

func (p vllm) initialize(ctx context.Context, rank, numPages int) error {
	_, err := p.post(ctx, fmt.Sprintf("/rank/%d/initialize", rank), map[string]any{"num_pages": numPages, "role": "worker"}, &struct{}{})
	return err
}

func (p vllm) exists(ctx context.Context, _ int, keys []string) ([]bool, error) {
	var answer struct{ Exists []bool }
	_, err := p.post(ctx, "/keys/batch_exists", map[string]any{"keys": keys}, &answer)
	if err == nil {
		err = wantLen(len(answer.Exists), len(keys))
	}
	return answer.Exists, err
}

func (p vllm) locate(ctx context.Context, rank int, keys []string) ([]int64, time.Time, error) {
	var answer struct{ Locations []*int64 }
	sent, err := p.post(ctx, "/keys/get_locations", map[string]any{"rank": rank, "keys": keys}, &answer)
	if err == nil {
		err = wantLen(len(answer.Locations), len(keys))
	}
	return orNone(answer.Locations), sent, err
}

func (p vllm) allocate(ctx context.Context, rank int, keys []string) (pages []int64, sent time.Time, err error) {
	var answer struct{ Results [][2]any }
	sent, err = p.post(ctx, "/keys/batch_allocate", map[string]any{"rank": rank, "keys": pairs(keys)}, &answer)
	if err == nil {
		err = wantLen(len(answer.Results), len(keys))
	}
	if err != nil {
		return nil, sent, err
	}
	for i, r := range answer.Results {
		page, ok := r[1].(float64)
		if r[0] != keys[i] || !ok {
			return nil, sent, fmt.Errorf("result %d is %v, not of %s", i, r, keys[i])
		}
		pages = append(pages, int64(page))
	}
	return pages, sent, nil
}

func (p vllm) confirm(ctx context.Context, rank int, written []placed, release []int64) error {
	_, err := p.post(ctx, "/keys/confirm_write", map[string]any{"rank": rank, "confirmations": pairsOf(written), "pages_to_release": append([]int64{}, release...)}, nil)
	return err
}

// sglang implements docs/spec/clients.md, 7.6. Each rank is independent.
type sglang struct{ caller }

func (p sglang) initialize(ctx context.Context, rank, numPages int) error {
	_, err := p.post(ctx, fmt.Sprintf("/%d/initialize", rank), map[string]any{"num_pages": numPages}, nil)
	return err
}

func (p sglang) exists(ctx context.Context, rank int, keys []string) ([]bool, error) {
	var answer struct{ Exists []bool }
	_, err := p.post(ctx, fmt.Sprintf("/%d/exists", rank), map[string]any{"keys": keys}, &answer)
	if err == nil {
		err = wantLen(len(answer.Exists), len(keys))
	}
	return answer.Exists, err
}

func (p sglang) locate(ctx context.Context, rank int, keys []string) ([]int64, time.Time, error) {
	var answer struct{ Indices []*int64 }
	sent, err := p.post(ctx, fmt.Sprintf("/%d/get_page_indices", rank), map[string]any{"keys": keys}, &answer)
	if err == nil {
		err = wantLen(len(answer.Indices), len(keys))
	}
	return orNone(answer.Indices), sent, err
}

func (p sglang) allocate(ctx context.Context, rank int, keys []string) (pages []int64, sent time.Time, err error) {
	var answer struct{ Indices [][2]any }
	sent, err = p.post(ctx, fmt.Sprintf("/%d/reserve_and_allocate_page_indices", rank), map[string]any{"keys": pairs(keys)}, &answer)
	if err == nil {
		err = wantLen(len(answer.Indices), len(keys))
	}
	if err != nil {
		return nil, sent, err
	}
	for i, r := range answer.Indices {
		page, ok := r[1].(float64)
		if _, isBool := r[0].(bool); !ok || !isBool {
			return nil, sent, fmt.Errorf("index %d is %v", i, r)
		}
		pages = append(pages, int64(page))
	}
	return pages, sent, nil
}

func (p sglang) confirm(ctx context.Context, rank int, written []placed, release []int64) error {
	_, err := p.post(ctx, fmt.Sprintf("/%d/confirm_write", rank), map[string]any{"written_keys_to_confirm": pairsOf(written), "pages_to_release": append([]int64{}, release...)}, nil)
	return err
}
