package enginebench

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/advise/transformer"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Subject is a model on its GPUs, with the layout of its blocks at a scale.
type Subject struct {
	profile     *prefill.Profile
	blockTokens int
	scale       int64
	layout      kvstore.Layout
}

// hardwareFor returns the default hardware of a model.
func hardwareFor(name string) string {
	for _, r := range prefill.UCM() {
		if r.Model == name {
			return fmt.Sprintf("%dx%s", r.GPUs, r.GPU)
		}
	}
	return "8xH100"
}

// parseSubject reads NAME or NAME@2xH100.
func parseSubject(text string) (*prefill.Profile, error) {
	name, hardware, _ := strings.Cut(text, "@")
	m, err := transformer.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("bench: --models: %w", err)
	}
	if hardware == "" {
		hardware = hardwareFor(m.Name)
	}
	count, gpuName, ok := strings.Cut(hardware, "x")
	n, err := strconv.Atoi(count)
	if !ok || err != nil {
		return nil, fmt.Errorf("bench: --models: %q names no GPUs; write %s@2xH100", text, m.Name)
	}
	gpu, err := prefill.LookupGPU(gpuName)
	if err != nil {
		return nil, fmt.Errorf("bench: --models: %w", err)
	}
	h := prefill.Hardware{GPU: gpu, Count: n}
	if p, ok := prefill.MeasuredProfile(m, h); ok {
		return p, nil
	}
	p, err := prefill.NewProfile(m, h, prefill.PlausibleMFU(m).Typical)
	if err != nil {
		return nil, fmt.Errorf("bench: --models: %w", err)
	}
	return p, nil
}

// layerBytes returns the size of a layer of a block at full size, on all ranks together.
func layerBytes(p *prefill.Profile, blockTokens int) (int64, error) {
	perToken, err := p.Model.LayerBytesPerToken(p.Hardware.Ranks())
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	return perToken * int64(blockTokens), nil
}

func newSubject(p *prefill.Profile, blockTokens int, scale int64) (*Subject, error) {
	layer, err := layerBytes(p, blockTokens)
	if err != nil {
		return nil, err
	}
	if layer%scale != 0 {
		return nil, fmt.Errorf("bench: a layer of %d tokens of %s has %d bytes, which --scale %d does not divide; choose a power of two up to %d",
			blockTokens, p.Model.Name, layer, scale, powerOfTwoIn(layer))
	}
	shard := layer / scale
	s := &Subject{profile: p, blockTokens: blockTokens, scale: scale, layout: kvstore.Layout{BlockBytes: shard * int64(p.Model.Layers), ShardBytes: shard}}
	if err := s.layout.Check(); err != nil {
		return nil, fmt.Errorf("bench: %s in blocks of %d tokens: %w", p.Model.Name, blockTokens, err)
	}
	return s, nil
}

// Name returns the name of the model.
func (s *Subject) Name() string { return s.profile.Model.Name }

// Hardware returns the GPUs, as 2xH100.
func (s *Subject) Hardware() string { return s.profile.Hardware.String() }

// compute returns how long a prompt keeps the GPUs busy when so many of its tokens were
// loaded and so many requests came together.
func (s *Subject) compute(cachedTokens, tokens, together int) time.Duration {
	return s.profile.Request(cachedTokens, tokens, together)
}

// blocks returns how many full blocks a prompt has. The rest is never saved.
func (s *Subject) blocks(tokens int) int { return tokens / s.blockTokens }

// powerOfTwoIn returns the largest power of two that divides n.
func powerOfTwoIn(n int64) int64 { return n & -n }
