package admin

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// A line of a listing, there and back.
func BenchmarkLine(b *testing.B) {
	e := keeper.Listed{Path: "models/meta-llama-SEP-Llama-3-8B@1@0@1f@half.data", Owner: "lmcache", Model: "meta-llama/Llama-3-8B", Bytes: 1 << 20, UnusedSeconds: 77, Uses: 3}
	for b.Loop() {
		text, err := encode(e)
		if err != nil {
			b.Fatal(err)
		}
		var m message
		var got keeper.Listed
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&m); err != nil {
			b.Fatal(err)
		}
		if err := m.decode(&got); err != nil || got != e {
			b.Fatal(got, err)
		}
	}
}
