package httpserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkParse parses the bodies that vLLM's and SGLang's clients send, with 1 key and
// with 512, beside encoding/json. It shows what the parser of this package buys:
// "json/ours" is how many times as long encoding/json takes, which accepts more.
func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 512} {
		vllm, sglang, pairs := make([]string, n), make([]string, n), make([]string, n)
		placed := make([]string, n)
		for i := range n {
			hash := uint64(i+1) * 0x9e3779b97f4a7c15
			vllm[i] = fmt.Sprintf(`"%016x%016x"`, hash, ^hash)
			sglang[i] = fmt.Sprintf(`"%016x%016x%016x%016x"`, hash, ^hash, hash, ^hash)
			pairs[i] = fmt.Sprintf(`[%s, ""]`, vllm[i])
			placed[i] = fmt.Sprintf(`[%s, %d]`, sglang[i], 70000+i)
		}
		list := func(items []string) string { return "[" + strings.Join(items, ", ") + "]" }
		compare(b, fmt.Sprintf("vllm/exists/%d", n), form{"keys": readKeys},
			`{"keys": `+list(vllm)+`}`, func() any { return new(struct{ Keys []string }) })
		compare(b, fmt.Sprintf("vllm/allocate/%d", n), form{"rank": readRank, "keys": readPairs},
			`{"rank": 0, "keys": `+list(pairs)+`}`, func() any {
				return new(struct {
					Rank *int64
					Keys [][2]string
				})
			})
		compare(b, fmt.Sprintf("sglang/locate/%d", n), form{"namespace": readPool, "keys": readKeys},
			`{"keys": `+list(sglang)+`, "namespace": "kv"}`, func() any {
				return new(struct {
					Keys      []string
					Namespace *string
				})
			})
		compare(b, fmt.Sprintf("sglang/confirm/%d", n), form{"namespace": readPool, "written_keys_to_confirm": readWritten, "pages_to_release": readRelease},
			`{"written_keys_to_confirm": `+list(placed)+`, "pages_to_release": [], "namespace": "kv"}`, func() any {
				return new(struct {
					Written   [][2]any `json:"written_keys_to_confirm"`
					Release   []int64  `json:"pages_to_release"`
					Namespace *string
				})
			})
	}
}

// compare measures both parsers on one body; ns/op is that of both together.
func compare(b *testing.B, name string, f form, body string, into func() any) {
	b.Run(name, func(b *testing.B) {
		l := Limits{}.WithDefaults()
		r := &request{limits: &l}
		begin := time.Now()
		for range b.N {
			r.reset()
			r.body = append(r.body, body...)
			if err := r.parse(f); err != nil || r.wrong != nil {
				b.Fatal(err, r.wrong)
			}
		}
		ours := time.Since(begin)
		begin = time.Now()
		for range b.N {
			if err := json.Unmarshal([]byte(body), into()); err != nil {
				b.Fatal(err)
			}
		}
		theirs := time.Since(begin)
		b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ours-ns/op")
		b.ReportMetric(float64(theirs.Nanoseconds())/float64(b.N), "json-ns/op")
		b.ReportMetric(float64(theirs)/float64(ours), "json/ours")
	})
}

// BenchmarkHostile parses bodies of about 8 MB, the largest that the service accepts by
// default, made to cost as much as possible.
func BenchmarkHostile(b *testing.B) {
	members := func(n int) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, `"a%d":1,`, i)
		}
		return all.String() + `"z":1`
	}
	deep := strings.Repeat(`{"a":`, maxDepth-10) + "1" + strings.Repeat("}", maxDepth-10)
	for name, value := range map[string]string{
		"one object":      "{" + members(700_000) + "}",
		"small objects":   "[" + strings.Repeat(`{"a":1},`, 1_000_000) + "1]",
		"middle objects":  "[" + strings.Repeat("{"+members(fewNames)+"},", 16_000) + "1]",
		"deep objects":    "[" + strings.Repeat(deep+",", 130) + "1]",
		"escaped strings": `"` + strings.Repeat(`\u00e9`, 1_300_000) + `"`,
	} {
		b.Run(name, func(b *testing.B) {
			l := Limits{}.WithDefaults()
			r := &request{limits: &l, body: []byte(`{"x":` + value + "}")}
			b.SetBytes(int64(len(r.body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.parse(form{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
