package workload_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

func TestReaderReadsRequests(t *testing.T) {
	r := workload.NewReader(strings.NewReader(`{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 18446744073709551615]}

 {"hash_ids":[0,2,3],"output_length":0,"input_length":1025,"timestamp":27.5,"model":"x","tools":{"a":[1]}}	
{"timestamp": 27.5, "input_length": 512, "output_length": 1, "hash_ids": [ 0 ]}
{"timestamp": 28, "input_length": 0, "output_length": 1, "hash_ids": []}`), "some.jsonl")
	var got []string
	for {
		q, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(q))
	}
	want := []string{
		fmt.Sprint(workload.Request{InputTokens: 700, OutputTokens: 20, Blocks: []uint64{0, 1<<64 - 1}}),
		fmt.Sprint(workload.Request{Arrival: 27500 * time.Microsecond, InputTokens: 1025, Blocks: []uint64{0, 2, 3}}),
		fmt.Sprint(workload.Request{Arrival: 27500 * time.Microsecond, InputTokens: 512, OutputTokens: 1, Blocks: []uint64{0}}),
		fmt.Sprint(workload.Request{Arrival: 28 * time.Millisecond, OutputTokens: 1, Blocks: []uint64{}}),
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestBlockReaderNeedsNoLengths(t *testing.T) {
	r := workload.NewBlockReader(strings.NewReader(`{"timestamp": 3, "hash_ids": [7, 8]}
{"timestamp": 4, "input_length": 64, "output_length": "?", "hash_ids": [7, 8, 9]}
{"timestamp": 5, "input_length": 0, "output_length": 0, "hash_ids": []}
{"timestamp": 6, "input_length": 9, "output_length": 1}
`), "some.jsonl")
	first, err := r.Read()
	if err != nil || first.Arrival != 3*time.Millisecond || fmt.Sprint(first.Blocks) != "[7 8]" {
		t.Errorf("%+v, %v", first, err)
	}
	if _, err = r.Read(); err == nil || !strings.Contains(err.Error(), "some.jsonl:2") {
		t.Errorf("a length that is no number: %v", err)
	}
	if empty, err := r.Read(); err != nil || len(empty.Blocks) != 0 {
		t.Errorf("%+v, %v", empty, err)
	}
	if _, err = r.Read(); err == nil || !strings.Contains(err.Error(), `some.jsonl:4: no field "hash_ids"`) {
		t.Errorf("no ids: %v", err)
	}
}

func TestReaderNamesTheLineAndTheCure(t *testing.T) {
	const good = `{"timestamp": 5, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}` + "\n"
	for _, c := range []struct{ name, line, want string }{
		{"no timestamp", `{"input_length": 1, "output_length": 1, "hash_ids": [1]}`, `no field "timestamp"`},
		{"no input_length", `{"timestamp": 5, "output_length": 1, "hash_ids": [1]}`, `no field "input_length"`},
		{"no output_length", `{"timestamp": 5, "input_length": 1, "hash_ids": [1]}`, `no field "output_length"`},
		{"no hash_ids", `{"timestamp": 5, "input_length": 1, "output_length": 1}`, `no ids in "hash_ids"`},
		{"null hash_ids", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": null}`, `must be a list`},
		{"null id", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [null]}`, `hash_ids[0] is null`},
		{"negative id", `{"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [4, -1]}`, `hash_ids[1] is -1`},
		{"fractional id", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}`, `hash_ids[0] is 1.5`},
		{"huge id", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [18446744073709551616]}`, `below 2^64`},
		{"nested id", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [[1]]}`, `hash_ids[0] is [1]`},
		{"object for ids", `{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": {"a": 1}}`, `must be a list`},
		{"negative input", `{"timestamp": 5, "input_length": -1, "output_length": 1, "hash_ids": []}`, `input_length is -1`},
		{"negative output", `{"timestamp": 5, "input_length": 1, "output_length": -7, "hash_ids": [1]}`, `output_length is -7`},
		{"fractional input", `{"timestamp": 5, "input_length": 1.5, "output_length": 1, "hash_ids": [1]}`, `whole number of tokens`},
		{"huge input", `{"timestamp": 5, "input_length": 1e18, "output_length": 1, "hash_ids": [1]}`, `whole number of tokens`},
		{"negative timestamp", `{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, `timestamp is -1`},
		{"Unix timestamp", `{"timestamp": 1763700000000, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, `not since 1970`},
		{"going back", `{"timestamp": 4, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, `before that of line 1; sort the trace`},
		{"too few ids", `{"timestamp": 5, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}`, `2 hash_ids for an input_length of 1025; at 512 tokens a block there must be 3`},
		{"too many ids", `{"timestamp": 5, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2, 3]}`, `there must be 2`},
		{"text timestamp", `{"timestamp": "now", "input_length": 1, "output_length": 1, "hash_ids": [1]}`, `timestamp is a string; it must be a number`},
		{"cut off", `{"timestamp": 5, "input_length": 1, "output_l`, `cut off or damaged`},
		{"two objects", strings.TrimSpace(good) + strings.TrimSpace(good), `no JSON object`},
		{"array", `[1, 2]`, `one JSON object a line, such as {"timestamp"`},
		{"csv", `timestamp,input_length`, `one JSON object a line`},
		{"endless", `{"timestamp": 5, "x": "` + strings.Repeat("x", 5<<20), `longer than 4 MiB`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := workload.NewReader(strings.NewReader(good+"\n"+c.line+"\n"+good), "t.jsonl")
			if _, err := r.Read(); err != nil {
				t.Fatal(err)
			}
			_, err := r.Read()
			if err == nil || !strings.HasPrefix(err.Error(), "t.jsonl:3: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not start with t.jsonl:3 or lacks %q", err, c.want)
			}
		})
	}
}

func TestReaderPassesReadErrorsOn(t *testing.T) {
	broken := errors.New("cable cut")
	r := workload.NewReader(io.MultiReader(strings.NewReader(`{"timest`), errReader{broken}), "x")
	if _, err := r.Read(); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "x:1: ") {
		t.Errorf("got %v", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

func TestSurveyCountsLeadingHits(t *testing.T) {
	s, err := workload.TakeSurvey(workload.NewReader(strings.NewReader(
		`{"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]}
{"timestamp": 1000, "input_length": 1400, "output_length": 1, "hash_ids": [1, 9, 3]}
{"timestamp": 2000, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]}
`), "x"), 0)
	want := workload.Survey{
		Requests: 3, Tokens: 1536 + 1400 + 1100, Blocks: 9, DistinctBlocks: 4, Duration: 2 * time.Second,
		HitBlocks: 0 + 1 + 3, // the gap at 9 ends the match although 3 is known
		HitTokens: 0 + 512 + 1100,
	}
	if err != nil || s != want {
		t.Errorf("got %+v, %v\nwant %+v", s, err, want)
	}
}

// FuzzReader checks that no line crashes the reader and that what it accepts keeps the
// contract of Request. The seeds here and in testdata are invented.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}`,
		`{"timestamp": 1e3, "input_length": 1, "output_length": 0, "hash_ids": [18446744073709551615], "extra": null}`,
		`{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [ null ]}`,
		`{"hash_ids": [1,], "timestamp": 0}`,
		"\n\n{}\n[]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := workload.NewReader(strings.NewReader(string(data)), "fuzz")
		var last time.Duration
		for {
			q, err := r.Read()
			if err == io.EOF {
				return
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), "fuzz:") {
					t.Fatalf("error names no line: %v", err)
				}
				return
			}
			if q.InputTokens < 0 || q.OutputTokens < 0 || q.Arrival < last {
				t.Fatalf("accepted %+v", q)
			}
			if full, n := q.InputTokens/workload.TokensPerBlock, len(q.Blocks); n < full || n > full+1 || q.HitTokens(n) != q.InputTokens {
				t.Fatalf("%d blocks for %d tokens", n, q.InputTokens)
			}
			last = q.Arrival
		}
	})
}
