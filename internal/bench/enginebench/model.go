package enginebench

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/advise/transformer"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Subject is a model on its GPUs, with the layout of its blocks at a scale.
type Subject struct {
	profile     *prefill.Profile
	blockTokens int
	scale       int64
	tokenBytes  int64 // of KV, of all ranks together, at full size
	layout      kvstore.Layout
}

// Models of the published benchmarks whose documents name them, with the GPUs that they
// name. For Qwen2.5-14B they name only the number of GPUs.
const (
	randomTwiceModel  = "Qwen2.5-14B@2xH100"
	sharedPrefixModel = "Qwen3-Coder-480B-A35B@8xH20-3e"
)

// hardwareFor returns the default hardware of a model.
func hardwareFor(name string) string {
	for _, published := range []string{randomTwiceModel, sharedPrefixModel} {
		if of, hardware, _ := strings.Cut(published, "@"); of == name {
			return hardware
		}
	}
	for _, r := range prefill.UCM() {
		if r.Model == name {
			return fmt.Sprintf("%dx%s", r.GPUs, r.GPU)
		}
	}
	return "8xH100"
}

// parseSubject reads NAME or NAME@2xH100. An mfu of 0 means that which was measured, or
// the default.
func parseSubject(text string, mfu float64) (*prefill.Profile, error) {
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
	if p, ok := prefill.MeasuredProfile(m, h); ok && mfu == 0 {
		return p, nil
	}
	p, err := prefill.NewProfile(m, h, cmp.Or(mfu, prefill.PlausibleMFU(m).Typical))
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

// newSubject returns a model whose blocks are loaded layer by layer or, with LoadWhole, as
// a whole.
func newSubject(p *prefill.Profile, blockTokens int, scale int64, load string) (*Subject, error) {
	layer, err := layerBytes(p, blockTokens)
	if err != nil {
		return nil, err
	}
	if layer%scale != 0 {
		return nil, fmt.Errorf("bench: a layer of %d tokens of %s has %d bytes, which --scale %d does not divide; choose a power of two up to %d",
			blockTokens, p.Model.Name, layer, scale, powerOfTwoIn(layer))
	}
	shard := layer / scale
	s := &Subject{
		profile: p, blockTokens: blockTokens, scale: scale, tokenBytes: layer / int64(blockTokens) * int64(p.Model.Layers),
		layout: kvstore.Layout{BlockBytes: shard * int64(p.Model.Layers), ShardBytes: shard},
	}
	if load == LoadWhole {
		s.layout.ShardBytes = s.layout.BlockBytes
	}
	if err := s.layout.Check(); err != nil {
		return nil, fmt.Errorf("bench: %s in blocks of %d tokens: %w", p.Model.Name, blockTokens, err)
	}
	return s, nil
}

// Name returns the name of the model.
func (s *Subject) Name() string { return s.profile.Model.Name }

// Hardware returns the GPUs, as 2xH100.
func (s *Subject) Hardware() string { return s.profile.Hardware.String() }

// blocks returns how many full blocks a prompt has. The rest is never saved.
func (s *Subject) blocks(tokens int) int { return tokens / s.blockTokens }

// powerOfTwoIn returns the largest power of two that divides n.
func powerOfTwoIn(n int64) int64 { return n & -n }
