package workload

import (
	"strings"
	"testing"
	"time"
)

func TestWrongBlockTellsWhatIsThere(t *testing.T) {
	const size = 64
	whole := make([]byte, size)
	contentOf(9, 2).Fill(whole)
	b := &inFlight{id: 9, path: "/mnt/x"}
	for name, c := range map[string]struct {
		got  []byte
		want []string
	}{
		"flipped":   {append(append([]byte{}, whole[:20]...), append([]byte{^whole[20]}, whole[21:]...)...), []string{"block 0x9 rank 2 (/mnt/x): 1 of 64 bytes wrong, the first at offset 20: expected "}},
		"zeros":     {append(append([]byte{}, whole[:40]...), make([]byte, 24)...), []string{"of 64 bytes wrong", "zeros as in a hole"}},
		"short":     {whole[:10], []string{"54 of 64 bytes wrong, the first at offset 10", "nothing: the read ended after 10 bytes"}},
		"empty":     {nil, []string{"64 of 64 bytes wrong, the first at offset 0", "ended after 0 bytes"}},
		"bad+short": {append([]byte{^whole[0]}, whole[1:10]...), []string{"55 of 64 bytes wrong, the first at offset 0"}},
	} {
		wrong, first := contentOf(9, 2).Check(c.got)
		if len(c.got) < size {
			wrong += size - len(c.got)
			if first < 0 {
				first = len(c.got)
			}
		}
		text := describeWrong(b, 2, c.got, wrong, first, size).String()
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in %q", name, want, text)
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	if err := (&Report{Requests: 3, SkippedBlocks: 4, VanishedSlices: 1}).verdict(); err != nil {
		t.Errorf("a replay without faults ended with %v", err)
	}
	for want, r := range map[string]*Report{
		"7 wrong bytes in 1 blocks": {WrongBytes: 7, WrongBlocks: 1},
		"2 I/O errors":              {Errors: 2},
		"5 blocks were not written": {NoSpaceBlocks: 5},
	} {
		if err := r.verdict(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTable(t *testing.T) {
	r := newReport(ReplayOptions{Ranks: 2, Depth: 8, BlockBytes: 1 << 20})
	r.Trace, r.Requests, r.Tokens, r.Blocks, r.HitTokens, r.HitBlocks = "t.jsonl", 2, 2000, 4, 500, 1
	r.EarlierHitBlocks, r.StoredBlocks, r.SkippedBlocks, r.MaxBlocks, r.ElapsedSeconds = 1, 2, 1, 2, 1.5
	for _, d := range []time.Duration{time.Millisecond, 3 * time.Millisecond} {
		r.lookup.record(d / 10)
	}
	r.load.record(2 * time.Millisecond)
	k := &rank{loaded: 1, stored: 2, blockLoad: newLatencies(), blockStore: newLatencies()}
	k.blockLoad.record(1500 * time.Microsecond)
	r.LoadSeconds, r.StoreSeconds = 0.002, 0
	r.finish([]*rank{k})
	var b strings.Builder
	if err := r.WriteTable(&b, &Survey{Requests: 2, Tokens: 2000, HitTokens: 400}); err != nil {
		t.Fatal(err)
	}
	const want = `2 requests of t.jsonl in 1.5s; ranks: 2, in flight: 8 blocks of 1.00 MiB each

hits       25.00 % of tokens  (500 of 2,000)
           25.00 % of blocks  (1 of 4; 1 were there from earlier)
           20.00 % of tokens is what an empty cache of unlimited size would have served
misses    2 blocks written, 1 skipped: the cap is 2 (--max-blocks)

                            count        p50        p99        max      bytes       GB/s
lookup, a request               2   100.0 us   300.0 us   300.0 us
load, a request                 1    2.00 ms    2.00 ms    2.00 ms   1.00 MiB       0.52
load, a block                   1    1.50 ms    1.50 ms    1.50 ms
store, a request                0          -          -          -
store, a block                  0          -          -          -

I/O errors: 0   wrong bytes: 0
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
