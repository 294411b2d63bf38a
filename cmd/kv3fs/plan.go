package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

type planCmd struct {
	Model      string      `placeholder:"NAME" help:"Model, as named on Hugging Face. For an unknown name, similar ones are listed."`
	Layers     int         `placeholder:"N" range:"1..100000" help:"For a model that is not known by name: the number of layers that keep KV. Also give --kv-heads and --head-dim, or --mla-dim; and --query-heads and --params."`
	KVHeads    int         `name:"kv-heads" placeholder:"N" range:"1..1000000" help:"KV heads per layer."`
	HeadDim    int         `placeholder:"N" range:"1..1000000" help:"Dimension of a head."`
	MLADim     int         `name:"mla-dim" placeholder:"N" range:"1..1000000" help:"For MLA: dimension of the latent vector with its rotary part, 576 for DeepSeek-V3. Attention is assumed to use keys of 192 and values of 128."`
	QueryHeads int         `placeholder:"N" range:"1..1000000" help:"Query heads per layer."`
	Params     paramsCount `placeholder:"N" range:"1M..1000T" help:"Parameters used for each token, such as 32.8B; for a mixture of experts, only the active ones."`
	KVDType    string      `name:"kv-dtype" default:"bf16" enum:"bf16,fp16,fp8,fp32" help:"Element type of the KV cache, not of the weights. Default: ${default}."`

	GPU     string  `name:"gpu" placeholder:"NAME" help:"GPUs of one engine instance: H100 for one, 8xH20 for eight. For an unknown name, similar ones are listed."`
	GPUs    int     `name:"gpus" placeholder:"N" range:"1..1048576" help:"Number of GPUs, if --gpu does not give it. Default: 1."`
	TFLOPS  float64 `name:"tflops" placeholder:"N" range:"0.001..1e9" help:"For a GPU that is not known by name: its TFLOPS in prefill, without sparsity."`
	Compute string  `default:"bf16" enum:"bf16,fp8" help:"Number type in which the GPU computes. Default: ${default}."`
	MFU     float64 `name:"mfu" placeholder:"X" range:"0.001..1" help:"Share of the peak TFLOPS that the engine reaches in prefill. Default: as UCM measured it for QwQ-32B on 2xH100 and DeepSeek-R1 on 8xH100, otherwise 0.5."`
	TP      int     `name:"tp" placeholder:"N" range:"1..1048576" help:"Tensor-parallel ranks. Default: the number of GPUs."`

	Context     tokenCount    `default:"32Ki" placeholder:"TOKENS" range:"1..16Mi" help:"Prompt length, such as 32768, 32Ki or 1Mi. Default: ${default}."`
	Hit         share         `default:"80%" placeholder:"SHARE" range:"0..1" help:"Share of the prompt that is in the store, 0.8 or 80%. Default: ${default}."`
	BlockTokens int           `default:"128" placeholder:"N" range:"1..16777216" help:"Tokens per block; only whole blocks are loaded. Default: ${default}."`
	Bandwidth   []bandwidth   `default:"3fs" placeholder:"RATE" help:"Rate at which the instance loads from the store, or several: 40GiB/s, 200Gbit/s, or a name: 3fs (one 3FS client, 40GiB/s), 100gbe, 200gbe, 400gbe, nvme4, nvme5, pcie5. Default: ${default}."`
	Overhead    time.Duration `default:"5ms" placeholder:"TIME" range:"0s..1h" help:"Fixed time that each load takes on top of its transfer. Default: ${default}."`
	Capacity    byteSize      `placeholder:"SIZE" range:"1.." help:"Size of the store, such as 10TiB; the plan then says how many tokens and conversations fit."`

	JSON bool `name:"json" help:"Print the plan as JSON instead of tables."`
}

// Help is what "kv3fs plan --help" adds to the flags.
func (*planCmd) Help() string {
	return `For example:

  kv3fs plan --model Qwen/QwQ-32B --gpu 2xH100
  kv3fs plan --model DeepSeek-R1 --gpu 8xH20 --context 64Ki --hit 0.9 --bandwidth nvme4,200gbe
  kv3fs plan --model mine --layers 62 --kv-heads 8 --head-dim 128 --query-heads 96 --params 35B --gpu 8xH100

The plan shows from which prefix length on loading KV cache is faster than recomputing
it, if at all, and the time to the first token (TTFT) of a single request:

  compute     nothing is loaded
  loaded      the prefix is loaded first, then the rest is computed
  overlapped  each layer is computed while the next ones load
  ideal       loading costs nothing

The plan is a calculation: nothing is measured.`
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
	return printReport(out, newPlan(c, in), c.JSON)
}

// instance is the engine instance that the plan is for.
type instance struct {
	profile       *prefill.Profile
	tp            int
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
	if in.tp = c.TP; in.tp == 0 {
		in.tp = h.Count
	}
	if in.tp < 1 || in.tp > h.Count {
		return in, fmt.Errorf("--tp must be 1 to the number of GPUs, %d, not %d; a GPU is at most one rank", h.Count, in.tp)
	}
	if in.rankBytes, err = m.BytesPerToken(in.tp); err != nil {
		return in, fmt.Errorf("%w (--tp is the number of GPUs by default)", err)
	}
	if in.instanceBytes, err = m.InstanceBytesPerToken(in.tp); err != nil {
		return in, err
	}
	if in.instanceBytes > maxTokenBytes {
		return in, fmt.Errorf("KV of %s per token is more than any model keeps; check the model's shape", sizeText(in.instanceBytes))
	}
	if c.MFU == 0 && c.TFLOPS == 0 {
		if measured, ok := prefill.MeasuredProfile(m, h); ok {
			in.profile = measured
			return in, nil
		}
	}
	mfu := c.MFU
	if mfu == 0 {
		mfu = prefill.DefaultMFU
	}
	in.profile, err = prefill.NewProfile(m, h, mfu)
	return in, err
}

// model returns the model, given by name or by its shape.
func (c *planCmd) model() (m prefill.Model, err error) {
	const byHand = "--layers with --kv-heads and --head-dim, or with --mla-dim, and --query-heads and --params"
	shape := model.Shape{Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, LatentDim: c.MLADim}
	switch {
	case shape != model.Shape{}:
		shape.Name = c.Model
		m.Shape = shape
		if m.MLA() {
			m.KeyDim, m.ValueDim = 128+64, 128
		}
	case c.Model == "":
		return m, errors.New("name the model with --model, or give " + byHand)
	default:
		if m, err = prefill.Lookup(c.Model); err != nil {
			return m, fmt.Errorf("%w; or give %s", err, byHand)
		}
	}
	if c.Params > 0 {
		m.Params = float64(c.Params)
		m.Weights = prefill.Weights{Params: m.Params, BytesPerParam: 2}
	}
	if c.QueryHeads != 0 {
		m.QueryHeads = c.QueryHeads
	}
	m.DType = model.DType(c.KVDType)
	if err := m.Shape.Check(); err != nil {
		return m, fmt.Errorf("%w; a model given by its shape needs %s", err, byHand)
	}
	if m.Params == 0 || m.QueryHeads == 0 {
		return m, errors.New("a model given by its shape needs --params and --query-heads too")
	}
	return m, m.Check()
}

// hardware returns the GPUs, given as "8xH20" or as "H20" and --gpus.
func (c *planCmd) hardware() (h prefill.Hardware, err error) {
	if c.GPU == "" {
		return h, errors.New("name the GPUs with --gpu, such as H100 or 8xH20")
	}
	name, count, err := splitCount(c.GPU)
	if err != nil {
		return h, err
	}
	switch {
	case count != 0 && c.GPUs != 0 && count != c.GPUs:
		return h, fmt.Errorf("--gpu %s means %d GPUs, but --gpus is %d; leave out one", c.GPU, count, c.GPUs)
	case c.TFLOPS != 0 && c.Compute == "fp8":
		return h, errors.New("--tflops is the speed in any type; leave out --compute")
	}
	h.Count = max(count, c.GPUs, 1)
	h.GPU, err = prefill.LookupGPU(name)
	switch {
	case c.TFLOPS != 0: // it also overrides the figure of a known GPU
		h.GPU = prefill.GPU{Name: name, BF16TFLOPS: c.TFLOPS}
	case err != nil:
		return h, fmt.Errorf("%w; write 8xH20 for eight, or give its TFLOPS with --tflops", err)
	default:
		h.FP8 = c.Compute == "fp8"
	}
	return h, h.Check()
}

// splitCount splits "8xH20" into name and number; the number is 0 if there is none.
func splitCount(gpus string) (name string, count int, err error) {
	rest := strings.TrimLeft(gpus, "0123456789")
	digits := gpus[:len(gpus)-len(rest)]
	for _, times := range []string{"x", "X", "×", "*"} {
		after, ok := strings.CutPrefix(strings.TrimSpace(rest), times)
		if !ok || digits == "" {
			continue
		}
		if count, err = strconv.Atoi(digits); err != nil || count < 1 {
			return "", 0, fmt.Errorf("--gpu %s does not begin with a valid number; write 8xH20 for eight GPUs", gpus)
		}
		return strings.TrimSpace(after), count, nil
	}
	return gpus, 0, nil
}
