package pagesbench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// dialect is one of the two protocols, for rank 0. Apart from names, they differ in where
// the rank is, and in what precedes a page in an answer.
type dialect struct {
	name      string
	keyDigits int    // hexadecimal
	salt      uint64 // makes keys differ from those of an earlier group of clients

	initialize, exists, locate, allocate, confirm, clear route
	existing, located, allocated                         string // fields of answers
}

// route is a path and the text around the list in its body.
type route struct{ path, before, after string }

// vllmDialect and sglangDialect are the two (docs/spec/clients.md, 6.6 and 7.6).
func vllmDialect() dialect {
	return dialect{
		name: "vllm", keyDigits: 32, // MD5
		initialize: route{"/rank/0/initialize", `{"role":"worker","num_pages":`, `}`},
		exists:     route{"/keys/batch_exists", `{"keys":[`, `]}`},
		locate:     route{"/keys/get_locations", `{"rank":0,"keys":[`, `]}`},
		allocate:   route{"/keys/batch_allocate", `{"rank":0,"keys":[`, `]}`},
		confirm:    route{"/keys/confirm_write", `{"rank":0,"confirmations":[`, `],"pages_to_release":[]}`},
		clear:      route{"/clear", `{`, `}`},
		existing:   "exists", located: "locations", allocated: "results",
	}
}

func sglangDialect() dialect {
	return dialect{
		name: "sglang", keyDigits: 64, // SHA-256
		initialize: route{"/0/initialize", `{"num_pages":`, `}`},
		exists:     route{"/0/exists", `{"keys":[`, `]}`},
		locate:     route{"/0/get_page_indices", `{"keys":[`, `]}`},
		allocate:   route{"/0/reserve_and_allocate_page_indices", `{"keys":[`, `]}`},
		confirm:    route{"/0/confirm_write", `{"written_keys_to_confirm":[`, `],"pages_to_release":[]}`},
		clear:      route{"/0/clear", `{`, `}`},
		existing:   "exists", located: "indices", allocated: "indices",
	}
}

// appendKey appends the n-th key, which has as many digits as the engine's keys, and
// looks as random.
func (d dialect) appendKey(b []byte, n uint64) []byte {
	for i := range d.keyDigits / 16 {
		b = appendHex(b, mix(n+d.salt+uint64(i)<<56))
	}
	return b
}

const hexDigits = "0123456789abcdef"

func appendHex(b []byte, v uint64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>shift&15])
	}
	return b
}

// mix is the finaliser of splitmix64: one to one, and each bit of the result
// depends on each bit of n.
func mix(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// appendKeys appends a body with plain keys.
func (d dialect) appendKeys(b []byte, r route, keys []uint64) []byte {
	b = append(b, r.before...)
	for i, n := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = d.appendKey(b, n)
		b = append(b, '"')
	}
	return append(b, r.after...)
}

// appendAllocation appends a body that requests pages for the keys first to first+n-1,
// without prefix keys.
func (d dialect) appendAllocation(b []byte, first uint64, n int) []byte {
	b = append(b, d.allocate.before...)
	for i := range uint64(n) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[', '"')
		b = d.appendKey(b, first+i)
		b = append(b, `",""]`...)
	}
	return append(b, d.allocate.after...)
}

// appendConfirmation appends a body that confirms these keys on pages.
func (d dialect) appendConfirmation(b []byte, first uint64, pages []int64) []byte {
	b = append(b, d.confirm.before...)
	for i, page := range pages {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[', '"')
		b = d.appendKey(b, first+uint64(i))
		b = append(b, '"', ',')
		b = strconv.AppendInt(b, page, 10)
		b = append(b, ']')
	}
	return append(b, d.confirm.after...)
}

// pagesOf reads the pages from the answer to an allocation in a fast way: each is the
// number before the bracket of a pair. It does not check the order; checkAllocated does,
// for some of the answers.
func (d dialect) pagesOf(answer []byte, pages []int64) ([]int64, error) {
	pages = pages[:0]
	at := bytes.Index(answer, []byte(`"`+d.allocated+`"`))
	if at < 0 {
		return nil, fmt.Errorf("no %q in the answer %.100q", d.allocated, answer)
	}
	for {
		length := bytes.IndexByte(answer[at:], ']')
		if length <= 0 || answer[at+length-1] == ']' || bytes.IndexByte(answer[at:at+length], ',') < 0 {
			return pages, nil // the bracket of the list
		}
		end := at + length
		begin := end
		for begin > at && answer[begin-1] >= '0' && answer[begin-1] <= '9' {
			begin--
		}
		page, err := strconv.ParseInt(string(answer[begin:end]), 10, 64)
		if err != nil || answer[begin-1] == '-' {
			return nil, fmt.Errorf("no page for key %d of the batch: %q", len(pages), answer[max(at, end-80):end])
		}
		pages = append(pages, page)
		at = end + 1
	}
}

// checkAllocated checks every pair of the answer to an allocation.
func (d dialect) checkAllocated(answer []byte, first uint64, pages []int64) error {
	var pairs [][2]any
	if err := field(answer, d.allocated, &pairs); err != nil {
		return err
	}
	if len(pairs) != len(pages) {
		return fmt.Errorf("%d pairs for %d keys", len(pairs), len(pages))
	}
	for i, pair := range pairs {
		if page, ok := pair[1].(float64); !ok || int64(page) != pages[i] {
			return fmt.Errorf("pair %d is %v, not of page %d", i, pair, pages[i])
		}
		var named any = string(d.appendKey(nil, first+uint64(i)))
		if d.name == "sglang" {
			named = false // a new key is not present
		}
		if pair[0] != named {
			return fmt.Errorf("pair %d is of %v, not %v", i, pair[0], named)
		}
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(pages)))
	if len(distinct) != len(pages) {
		return fmt.Errorf("%d keys share %d pages", len(pages), len(distinct))
	}
	return nil
}

// field returns one field of a JSON object.
func field(text []byte, name string, value any) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return fmt.Errorf("answer %.100q: %w", text, err)
	}
	if err := json.Unmarshal(object[name], value); err != nil {
		return fmt.Errorf("%q of the answer %.100q: %w", name, text, err)
	}
	return nil
}
