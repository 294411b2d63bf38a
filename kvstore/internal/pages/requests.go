package pages

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// none is the page number of a key without a page.
const none = -1

// body begins the body of a request with the pool's name and a field.
func (c *service) body(field string) []byte {
	return append(strconv.AppendQuote(append(make([]byte, 0, 1024), `{"namespace":`...), c.pool), `,"`+field+`":`...)
}

func appendKeys(b []byte, keys []kv.Key, each func([]byte, int) []byte) []byte {
	b = append(b, '[')
	for i := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = each(b, i)
	}
	return append(b, "]"...)
}

func appendKey(b []byte, k kv.Key) []byte {
	return append(hex.AppendEncode(append(b, '"'), k[:]), '"')
}

// initialize registers the rank.
func (c *service) initialize(ctx context.Context) error {
	return c.call(ctx, patient, "initialize", append(strconv.AppendInt(c.body("num_pages"), c.pages, 10), '}'), nil)
}

// exists returns which keys are present.
func (c *service) exists(ctx context.Context, keys []kv.Key) ([]bool, error) {
	var a struct {
		Exists []bool `json:"exists"`
	}
	if err := c.request(ctx, once, "exists", c.keysBody(keys), &a); err != nil {
		return nil, err
	}
	return a.Exists, c.checkLength(len(a.Exists), keys)
}

func (c *service) keysBody(keys []kv.Key) []byte {
	return append(appendKeys(c.body("keys"), keys, func(b []byte, i int) []byte { return appendKey(b, keys[i]) }), '}')
}

func (c *service) checkLength(n int, keys []kv.Key) error {
	if n != len(keys) {
		return fmt.Errorf("kvstore: the page service at %s: %w: %d answers to %d keys", c.url, errNonsense, n, len(keys))
	}
	return nil
}

func (c *service) checkPage(page int64) error {
	if page < none || page >= c.pages {
		return fmt.Errorf("kvstore: the page service at %s: %w: page %d of %d", c.url, errNonsense, page, c.pages)
	}
	return nil
}

// locate returns the page of each key, or none.
func (c *service) locate(ctx context.Context, keys []kv.Key) ([]int64, error) {
	var a struct {
		Indices []*int64 `json:"indices"`
	}
	if err := c.request(ctx, once, "get_page_indices", c.keysBody(keys), &a); err != nil {
		return nil, err
	}
	pages := make([]int64, len(a.Indices))
	for i, page := range a.Indices {
		pages[i] = none
		if page != nil {
			pages[i] = *page
		}
		if err := c.checkPage(pages[i]); err != nil {
			return nil, err
		}
	}
	return pages, c.checkLength(len(pages), keys)
}

// grant is the answer to one key of a reservation.
type grant struct {
	present bool
	page    int64
}

// UnmarshalJSON reads [present, page].
func (g *grant) UnmarshalJSON(b []byte) error {
	pair := []any{&g.present, &g.page}
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a grant of %d values", len(pair))
	}
	return nil
}

// reserve reserves a page for each key that is not present.
func (c *service) reserve(ctx context.Context, keys []kv.Key) ([]grant, error) {
	var a struct {
		Indices []grant `json:"indices"`
	}
	body := append(appendKeys(c.body("keys"), keys, func(b []byte, i int) []byte {
		return append(appendKey(append(b, '['), keys[i]), `,""]`...)
	}), '}')
	if err := c.request(ctx, patient, "reserve_and_allocate_page_indices", body, &a); err != nil {
		return nil, err
	}
	for _, g := range a.Indices {
		if err := c.checkPage(g.page); err != nil {
			return nil, err
		}
	}
	return a.Indices, c.checkLength(len(a.Indices), keys)
}

// confirm makes pages belong to their keys. It does not try again after errUnknown: a
// service that has forgotten the rank has forgotten the reservations as well.
func (c *service) confirm(ctx context.Context, keys []kv.Key, pages []int64) error {
	body := append(appendKeys(c.body("written_keys_to_confirm"), keys, func(b []byte, i int) []byte {
		b = append(appendKey(append(b, '['), keys[i]), ',')
		return append(strconv.AppendInt(b, pages[i], 10), ']')
	}), `,"pages_to_release":[]}`...)
	return c.call(ctx, patient, "confirm_write", body, nil)
}

// remove deletes keys, so that they can be saved again.
func (c *service) remove(ctx context.Context, p patience, keys []kv.Key) error {
	return c.request(ctx, p, "delete_keys", c.keysBody(keys), nil)
}

// listed is how many keys one answer to list has at most.
const listed = 4096

// list returns the keys that are there after a key, in their order, and the last one
// that it has seen. There are no more when last is empty.
func (c *service) list(ctx context.Context, after string) (found []kv.Key, last string, err error) {
	var a struct {
		Entries []struct {
			Key      string `json:"key"`
			Complete bool   `json:"complete"`
		} `json:"entries"`
	}
	type space struct {
		Namespace string `json:"namespace"`
		Set       string `json:"set"`
	}
	body, err := json.Marshal(struct {
		Space space  `json:"space"`
		After string `json:"after"`
		Limit int    `json:"limit"`
	}{space{c.space, c.set}, after, listed})
	if err != nil {
		return nil, "", err
	}
	err = c.call(ctx, once, "/admin/v1/list", body, &a)
	if errors.Is(err, errUnknown) {
		return nil, "", nil // a service that has lost its index has no keys
	}
	if err != nil {
		return nil, "", err
	}
	for _, e := range a.Entries {
		if key, err := keys.ParseKey(e.Key); err == nil && key.String() == e.Key && e.Complete {
			found = append(found, key)
		}
		last = e.Key
	}
	return found, last, nil
}
