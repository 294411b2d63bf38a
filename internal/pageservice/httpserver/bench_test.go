package httpserver_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

func benchKeys(from, n int) (keys []string, pairs [][2]string) {
	for i := range n {
		k := fmt.Sprintf("%032x", (from+i)*7919)
		keys, pairs = append(keys, k), append(pairs, [2]string{k, ""})
	}
	return keys, pairs
}

func jsonText(v any) string { b, _ := json.Marshal(v); return string(b) }

// BenchmarkExists measures one client that queries 512 keys of vLLM over loopback, all of
// which exist.
func BenchmarkExists(b *testing.B) {
	s := start(b, httpserver.Options{}, pageservice.Options{})
	keys, pairs := benchKeys(0, 512)
	s.ok("/rank/0/initialize", `{"num_pages":100000}`)
	var got struct{ Results []json.RawMessage }
	if err := json.Unmarshal([]byte(s.ok("/keys/batch_allocate", jsonText(map[string]any{"rank": 0, "keys": pairs}))), &got); err != nil {
		b.Fatal(err)
	}
	s.ok("/keys/confirm_write", jsonText(map[string]any{"rank": 0, "confirmations": got.Results}))
	body := jsonText(map[string]any{"keys": keys})
	b.ReportAllocs()
	for b.Loop() {
		s.ok("/keys/batch_exists", body)
	}
}

// BenchmarkReserve measures the first half of a save of 512 pages, BenchmarkSave the whole.
func BenchmarkReserve(b *testing.B) {
	s := start(b, httpserver.Options{}, pageservice.Options{})
	s.ok("/0/initialize", `{"num_pages":1000000}`)
	_, pairs := benchKeys(0, 512)
	body := jsonText(map[string]any{"keys": pairs})
	for b.Loop() {
		s.ok("/0/reserve_and_allocate_page_indices", body)
	}
}

func BenchmarkSave(b *testing.B) {
	s := start(b, httpserver.Options{}, pageservice.Options{})
	s.ok("/0/initialize", `{"num_pages":1000000}`)
	n := 0
	for b.Loop() {
		keys, pairs := benchKeys(n, 512)
		n += 512
		var got struct{ Indices [][2]any }
		if err := json.Unmarshal([]byte(s.ok("/0/reserve_and_allocate_page_indices", jsonText(map[string]any{"keys": pairs}))), &got); err != nil {
			b.Fatal(err)
		}
		written := make([][2]any, 0, len(keys))
		for i, g := range got.Indices {
			written = append(written, [2]any{keys[i], g[1]})
		}
		s.ok("/0/confirm_write", jsonText(map[string]any{"written_keys_to_confirm": written, "pages_to_release": []int{}}))
	}
}
