package engineconfig

import (
	"math"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// The sizing list of clients.md 14.4 and the table of 13.1.
func TestNeeds(t *testing.T) {
	r1, err := model.Lookup("DeepSeek-R1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		engine             string
		p                  Params
		ranks              int
		shm                int64 // all ranks
		rings, iovs, files int   // a rank
	}{
		{LMCache, Params{}, 1, 2000 * mib, 10, 10, 10},
		{LMCache, Params{Clients: 16, BufferBytes: 2 * gib}, 8, 8 * 17 * 4 * gib, 34, 34, 34},
		{LMCacheGDS, Params{}, 8, 0, 0, 0, 8},
		{VLLM, Params{TP: 8}, 8, 8 * 16 * 2 * 8 * 256 << 10, 32, 32, 32}, // 256 rings over eight ranks
		{SGLang, Params{TP: 8, Model: r1}, 8, 8 * 16 * 2 * 8 * 64 * 70272, 32, 32, 32},
		{SGLang, Params{TP: 8, Model: r1, ExtraPools: 2}, 8, 3 * 8 * 16 * 2 * 8 * 64 * 70272, 96, 96, 96},
		{UCM, Params{TP: 8}, 8, 8 * 32 * 2 * mib, 64, 32, 64}, // 512 rings and 256 iovs over eight
		{UCM, Params{TP: 8, Model: r1}, 8, 8*32*128*70272 + 256*gib, 64, 32, 64},
		{RTPLLM, Params{TP: 4}, 4, 32 * gib, 8, 2, 16},
		{Mooncake, Params{}, 1, 512 * mib, 32, 16, 128},
		{NIXL, Params{}, 1, 0, 0, 0, 0},
	} {
		n, err := NeedOf(c.engine, c.p)
		if err != nil {
			t.Error(err)
			continue
		}
		if n.ShmBytes(c.ranks) != c.shm || n.Rings != c.rings || n.Iovs != c.iovs || n.OpenFiles != c.files {
			t.Errorf("%s %+v: shm %d, want %d; %+v", c.engine, c.p, n.ShmBytes(c.ranks), c.shm, n)
		}
		if len(n.Packages) == 0 {
			t.Errorf("%s: no packages", c.engine)
		}
	}
	for _, engine := range Names() {
		n, err := NeedOf(engine, Params{})
		if err != nil {
			t.Error(err)
		}
		if n.Rings3FS == (engine == LMCacheGDS) || n.GDS != (engine == LMCacheGDS) || n.HashSeed != strings.HasPrefix(engine, "lmcache") || (n.PageService != "") != (engine == VLLM) {
			t.Errorf("%s: %+v", engine, n)
		}
	}
}

func TestNeedRefuses(t *testing.T) {
	for _, c := range []struct {
		engine string
		p      Params
		want   string
	}{
		{"", Params{}, "known: lmcache"},
		{"LMCache", Params{}, "did you mean lmcache?"},
		{VLLM, Params{TP: -1}, "must be 0 to"},
		{VLLM, Params{Clients: math.MaxInt}, "must be 0 to"},
		{LMCache, Params{BufferBytes: -1}, "buffer of -1"},
		{VLLM, Params{Model: model.Shape{Layers: 1}}, "give KV heads"},
	} {
		if n, err := NeedOf(c.engine, c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %+v, %v; want an error with %q", c.engine, c.p, n, err, c.want)
		}
	}
	// Absurd sizes saturate at the largest number.
	n, err := NeedOf(LMCache, Params{Clients: maxCount, BufferBytes: math.MaxInt64})
	if err != nil || n.ShmBytes(8) != math.MaxInt64 {
		t.Errorf("%+v, %v", n, err)
	}
}
