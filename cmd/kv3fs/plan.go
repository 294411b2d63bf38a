package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/advise/transformer"
)

type planCmd struct {
	Model      string      `placeholder:"NAME|FILE" help:"Model, as named on Hugging Face, or its config.json. For an unknown name, similar ones are listed."`
	Layers     int         `placeholder:"N" range:"1..100000" help:"For a model without a known name or config.json: the number of layers that keep KV. Also give --kv-heads and --head-dim, or --mla-dim; and --query-heads and --params."`
	KVHeads    int         `name:"kv-heads" placeholder:"N" range:"1..1000000" help:"KV heads per layer."`
	HeadDim    int         `placeholder:"N" range:"1..1000000" help:"Dimension of a head."`
	MLADim     int         `name:"mla-dim" placeholder:"N" range:"1..1000000" help:"For MLA: dimension of the latent vector with its rotary part, 576 for DeepSeek-V3. Attention is assumed to use keys of 192 and values of 128."`
	QueryHeads int         `placeholder:"N" range:"1..1000000" help:"Query heads per layer."`
	Params     paramsCount `placeholder:"N" range:"1M..1000T" help:"Parameters used for each token, without embeddings, such as 31.2B; for a mixture of experts, only the active ones."`
	Weights    byteSize    `placeholder:"SIZE" range:"1..1024TiB" help:"Size of all weights in GPU memory, such as 20GB. Default: that of the published weights; for a model given by its shape, 2 bytes per parameter."`
	KVDType    string      `name:"kv-dtype" default:"bf16" enum:"bf16,fp16,fp8,fp32" help:"Element type of the KV cache, not of the weights. Default: ${default}."`

	GPU             string    `name:"gpu" placeholder:"NAME" help:"GPUs of one engine instance: H100 for one, 8xH20 for eight, 2x8xH20 for eight on each of two hosts. For an unknown name, similar ones are listed."`
	GPUs            int       `name:"gpus" placeholder:"N" range:"1..4096" help:"Number of GPUs, if --gpu does not give it. Default: 1."`
	TFLOPS          float64   `name:"tflops" placeholder:"N" range:"0.001..1e9" help:"For a GPU that is not known by name: its TFLOPS in prefill, without sparsity."`
	GPUMemory       byteSize  `name:"gpu-memory" placeholder:"SIZE" range:"1GB..16TB" help:"Memory of one GPU that is not known by name, such as 80GB."`
	MemoryBandwidth bandwidth `placeholder:"RATE" range:"1GB/s..1000TB/s" help:"Bandwidth of that memory, such as 3.35TB/s. Without it, reading the weights takes no time."`
	Compute         string    `default:"bf16" enum:"bf16,fp8" help:"Number type in which the GPU computes. Default: ${default}."`
	MFU             float64   `name:"mfu" placeholder:"X" range:"0.001..1" help:"Share of the peak TFLOPS that the engine reaches in prefill, if you know it. Default: 0.5, with answers for 0.35 to 0.6; for a mixture of experts 0.3, with answers for 0.1 to 0.5."`
	TP              int       `name:"tp" placeholder:"N" range:"1..4096" help:"Tensor-parallel ranks. Default: the number of GPUs."`

	Context      tokenCount    `default:"32Ki" placeholder:"TOKENS" range:"1..16Mi" help:"Prompt length, such as 32768, 32Ki or 1Mi. Default: ${default}."`
	Hit          share         `default:"80%" placeholder:"SHARE" range:"0..1" help:"Share of the prompt that is in the store, 0.8 or 80%. Default: ${default}."`
	BlockTokens  int           `default:"128" placeholder:"N" range:"1..16777216" help:"Tokens per block; only whole blocks are loaded. Default: ${default}."`
	WholeWindows bool          `help:"Layers with a sliding window or chunks load every cached token, as with connectors that give all layers the same blocks. Default: only what their window needs."`
	Bandwidth    []bandwidth   `default:"3fs" placeholder:"RATE" range:"1KB/s.." help:"Rate at which the instance loads from the store, or several: 40GiB/s, 200Gbit/s, or a name: 3fs (one 3FS client, 40GiB/s), 100gbe, 200gbe, 400gbe, nvme4, nvme5, pcie5; 4x100gbe for four. Default: ${default}."`
	Overhead     time.Duration `default:"5ms" placeholder:"TIME" range:"0s..1h" help:"Fixed time that each load takes on top of its transfer. Default: ${default}."`
	Capacity     byteSize      `placeholder:"SIZE" range:"1.." help:"Size of the store, such as 10TiB; the plan then says how many tokens and conversations fit."`

	JSON bool `name:"json" help:"Print the plan as JSON instead of tables."`
}

// Help is what "kv3fs plan --help" adds to the flags.
func (*planCmd) Help() string {
	return `For example:

  kv3fs plan --model Qwen/QwQ-32B --gpu 2xH100
  kv3fs plan --model DeepSeek-R1 --gpu 8xH20 --context 64Ki --hit 0.9 --bandwidth nvme4,200gbe
  kv3fs plan --model ./config.json --gpu 2x8xH20 --bandwidth 4x100gbe
  kv3fs plan --model mine --layers 62 --kv-heads 8 --head-dim 128 --query-heads 96 --params 33.6B --gpu 8xH100

The plan shows from which prefix length on loading KV cache is faster than recomputing
it, if at all, and the time to the first token (TTFT) of a single request:

  compute     nothing is loaded
  loaded      the prefix is loaded first, then the rest is computed
  overlapped  each layer is computed while the next ones load
  ideal       loading costs nothing

The plan is a calculation: nothing is measured. Its answers depend most on how much of
their peak the GPUs reach (MFU), so each one comes with a range, and with the MFU and the
bandwidth at which it turns. docs/plan.md lists formulas and sources.`
}

// The largest values that a plan accepts.
const (
	maxContext    = 16 << 20
	maxTokenBytes = 4 << 30 // a thousand times what any model keeps
)

// Validate reports invalid flags.
func (c *planCmd) Validate() error {
	if int(c.Context) < c.BlockTokens {
		return fmt.Errorf("--context of %d tokens is shorter than a block of %d; choose a longer context, or smaller blocks with --block-tokens", c.Context, c.BlockTokens)
	}
	_, err := c.instance()
	return err
}

// Run prints the plan.
func (c *planCmd) Run(out io.Writer) error {
	in, err := c.instance()
	if err != nil {
		return err
	}
	p := newPlan(c, in)
	if c.JSON {
		return writeJSON(out, "plan", false, p)
	}
	return p.WriteTable(out)
}

// instance is the engine instance that the plan is for.
type instance struct {
	profile       *prefill.Profile // at the typical MFU
	slow, fast    *prefill.Profile // at the ends of the plausible range
	mfu           prefill.Efficiency
	rankBytes     int64 // of KV per token, on each rank
	instanceBytes int64 // of KV per token, on all ranks
}

func (c *planCmd) instance() (in instance, err error) {
	m, err := c.model()
	if err != nil {
		return in, err
	}
	h, err := c.hardware()
	if err != nil {
		return in, err
	}
	if in.rankBytes, err = m.RankBytesPerToken(h.Ranks()); err != nil {
		return in, fmt.Errorf("%w (--tp is the number of GPUs by default)", err)
	}
	if in.instanceBytes, err = m.BytesPerToken(h.Ranks()); err != nil {
		return in, err
	}
	if in.instanceBytes > maxTokenBytes {
		return in, fmt.Errorf("KV of %s per token is more than any model keeps; check the model's shape", sizeText(in.instanceBytes))
	}
	in.mfu = prefill.PlausibleMFU(m)
	if c.MFU != 0 {
		in.mfu = in.mfu.With(c.MFU)
	}
	for _, p := range []struct {
		profile **prefill.Profile
		mfu     float64
	}{{&in.profile, in.mfu.Typical}, {&in.slow, in.mfu.Low}, {&in.fast, in.mfu.High}} {
		if *p.profile, err = prefill.NewProfile(m, h, p.mfu); err != nil {
			return in, err
		}
	}
	return in, nil
}

// model returns the model, given by name, by its config.json or by its shape.
func (c *planCmd) model() (m transformer.Model, err error) {
	const byHand = "--layers with --kv-heads and --head-dim, or with --mla-dim, and --query-heads and --params"
	shape := transformer.Layers{Kind: transformer.Full, Count: c.Layers, KVHeads: c.KVHeads, KeyDim: c.HeadDim, ValueDim: c.HeadDim, LatentDim: c.MLADim}
	switch {
	case shape != transformer.Layers{Kind: transformer.Full}:
		if c.MLADim != 0 && c.HeadDim == 0 {
			shape.KeyDim, shape.ValueDim = 128+64, 128
		}
		if c.Params == 0 || c.QueryHeads == 0 {
			return m, errors.New("a model given by its shape needs --params and --query-heads, and --layers with --kv-heads and --head-dim, or with --mla-dim")
		}
		m = transformer.Uniform(shape, transformer.Dense(float64(c.Params)))
		m.Name = c.Model
	case c.Model == "":
		return m, errors.New("name the model with --model, or give " + byHand)
	default:
		switch m, err = c.namedModel(); {
		case errors.Is(err, transformer.ErrNoPrefix):
			return m, err
		case err != nil:
			return m, fmt.Errorf("%w; or give %s", err, byHand)
		}
		if c.Params > 0 {
			m.Weights = transformer.Dense(float64(c.Params))
		}
	}
	if c.QueryHeads != 0 {
		m.Kinds = slices.Clone(m.Kinds)
		for i := range m.Kinds {
			m.Kinds[i].QueryHeads = c.QueryHeads
		}
	}
	if c.Weights > 0 {
		if m.Weights, err = m.Weights.OfSize(float64(c.Weights)); err != nil {
			return m, fmt.Errorf("--weights: %w", err)
		}
	}
	m.KVType = model.DType(c.KVDType)
	if err := m.Check(); err != nil {
		return m, fmt.Errorf("%w; a model given by its shape needs %s", err, byHand)
	}
	return m, nil
}

// namedModel returns a model that is known by name, or from a config.json or a directory
// with one.
func (c *planCmd) namedModel() (transformer.Model, error) {
	path := c.Model
	at, err := os.Stat(path)
	if err == nil && at.IsDir() {
		path = filepath.Join(path, "config.json")
		_, err = os.Stat(path)
	}
	if err != nil && !strings.HasSuffix(path, ".json") {
		return transformer.Lookup(c.Model)
	}
	m, err := transformer.ReadFile(path)
	m.Name = c.Model
	return m, err
}

// hardware returns the GPUs, given as "8xH20" or as "H20" and --gpus.
func (c *planCmd) hardware() (h prefill.Hardware, err error) {
	if c.GPU == "" {
		return h, errors.New("name the GPUs with --gpu, such as H100 or 8xH20")
	}
	name, counts, err := splitCounts(c.GPU)
	if err != nil {
		return h, fmt.Errorf("--gpu %w; write 8xH20 for eight GPUs", err)
	}
	count := 0
	switch len(counts) {
	case 0:
	case 1:
		count = counts[0]
	case 2:
		h.Hosts, count = counts[0], counts[0]*counts[1]
	default:
		return h, fmt.Errorf("--gpu %s: write 2x8xH20 for eight GPUs on each of two hosts", c.GPU)
	}
	switch {
	case count != 0 && c.GPUs != 0 && count != c.GPUs:
		return h, fmt.Errorf("--gpu %s means %d GPUs, but --gpus is %d; leave out one", c.GPU, count, c.GPUs)
	case c.TFLOPS != 0 && c.Compute == "fp8":
		return h, errors.New("--tflops is the speed in any type; leave out --compute")
	}
	h.Count, h.TP = max(count, c.GPUs, 1), c.TP
	h.GPU, err = prefill.LookupGPU(name)
	switch {
	case err != nil && c.TFLOPS == 0:
		return h, fmt.Errorf("%w; write 8xH20 for eight, or give its TFLOPS with --tflops", err)
	case err != nil:
		h.GPU = prefill.GPU{Name: name, BF16TFLOPS: c.TFLOPS}
	case c.TFLOPS != 0: // it also overrides the figure of a known GPU
		h.GPU.BF16TFLOPS = c.TFLOPS
	default:
		h.FP8 = c.Compute == "fp8"
	}
	if c.GPUMemory > 0 {
		h.GPU.MemoryGB = float64(c.GPUMemory) / 1e9
	}
	if c.MemoryBandwidth.BytesPerSecond > 0 {
		h.GPU.MemoryTBps = c.MemoryBandwidth.BytesPerSecond / 1e12
	}
	if h.TP > h.Count {
		return h, fmt.Errorf("--tp must be 1 to the number of GPUs, %d, not %d; a GPU is at most one rank", h.Count, h.TP)
	}
	return h, h.Check()
}

// splitCounts splits "2x8xH20" into the name and the numbers before it.
func splitCounts(text string) (name string, counts []int, err error) {
	for name = text; ; {
		rest := strings.TrimLeft(name, "0123456789")
		digits := name[:len(name)-len(rest)]
		after, ok := cutTimes(strings.TrimSpace(rest))
		if !ok || digits == "" {
			return name, counts, nil
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > 1<<20 {
			return "", nil, fmt.Errorf("%s does not begin with a valid number", text)
		}
		counts = append(counts, n)
		name = strings.TrimSpace(after)
	}
}

// cutTimes removes a sign for "times" from the beginning of a text.
func cutTimes(s string) (after string, ok bool) {
	for _, times := range []string{"x", "X", "×", "*"} {
		if after, ok = strings.CutPrefix(s, times); ok {
			return after, true
		}
	}
	return s, false
}
