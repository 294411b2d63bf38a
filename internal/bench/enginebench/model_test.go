package enginebench

import (
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

// Blocks hold what all ranks together keep: a KV head once for each rank that has it, and
// MLA's latent vector once. The figures are written out; plan's are the profile's.
func TestTokenBytes(t *testing.T) {
	for _, c := range []struct {
		model string
		want  int64 // layers · 2 · heads on all ranks · dimension · bytes of an element
	}{
		{"Qwen3-30B-A3B@8xH20", 48 * 2 * 8 * 128 * 2}, // 4 KV heads, each on 2 of 8 ranks
		{"GLM-4-9B@8xH100", 40 * 2 * 8 * 128 * 2},     // 2 KV heads, each on 4
		{"Llama-3.1-70B@8xH100", 80 * 2 * 8 * 128 * 2},
		{"QwQ-32B@2xH100", 64 * 2 * 8 * 128 * 2}, // 8 KV heads, 4 on each
		{"Gemma-3-27B@2xH100", 62 * 2 * 16 * 128 * 2},
		{"DeepSeek-R1@8xH20", 61 * (512 + 64) * 2}, // MLA
	} {
		p, err := parseSubject(c.model, 0)
		if err != nil {
			t.Fatal(err)
		}
		const blockTokens, scale = 128, 256
		s, err := newSubject(p, blockTokens, scale, LoadLayers)
		if err != nil {
			t.Fatal(err)
		}
		planned, err := p.Model.BytesPerToken(p.Hardware.Ranks())
		if s.tokenBytes != c.want || planned != c.want || s.layout.BlockBytes*scale != c.want*blockTokens {
			t.Errorf("%s: %d bytes per token, %d by plan (%v), blocks of %d; want %d", c.model, s.tokenBytes, planned, err, s.layout.BlockBytes, c.want)
		}
		// A load of plan's takes as many.
		if load := p.LoadBytes(prefill.Store{BlockTokens: blockTokens, WholeWindows: true}, blockTokens); load != c.want*blockTokens {
			t.Errorf("%s: plan loads %d bytes of a block, want %d", c.model, load, c.want*blockTokens)
		}
	}
}
