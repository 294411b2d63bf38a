package prefill

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/transformer"
	"github.com/kv3fs/kv3fs/internal/spelling"
)

// GPU is an accelerator with the nominal speed of its tensor cores, without sparsity, and
// its memory.
type GPU struct {
	Name       string
	BF16TFLOPS float64
	FP8TFLOPS  float64 // 0 if it has no FP8, or no figure is published
	MemoryGB   float64 // 0 if unknown
	MemoryTBps float64 // TB/s; 0 if unknown
}

// GPUs lists the known GPUs. docs/plan.md says where each figure was read.
func GPUs() []GPU {
	return []GPU{
		{"H100", 989, 1979, 80, 3.35}, {"H100-PCIe", 756, 1513, 80, 2.0}, {"H200", 989, 1979, 141, 4.8},
		{"H800", 989, 1979, 80, 3.35}, {"H20", 148, 296, 96, 4.0}, {"H20-3e", 148, 296, 141, 4.8},
		{"B200", 2250, 4500, 180, 8.0}, {"GB200", 2500, 5000, 186, 8.0}, {"B300", 2250, 4500, 270, 8.0}, {"GB300", 2500, 5000, 279, 8.0},
		{"A100", 312, 0, 80, 2.039}, {"A800", 312, 0, 80, 2.039}, {"A30", 165, 0, 24, 0.933}, {"A10", 125, 0, 24, 0.6},
		{"L40S", 362, 733, 48, 0.864}, {"L20", 119.5, 239, 48, 0.864}, {"L4", 121, 242, 24, 0.3},
		{"RTX-4090", 165.2, 330.3, 24, 1.008}, {"RTX-PRO-6000", 503.8, 1007.6, 96, 1.792},
		{"MI300X", 1307.4, 2614.9, 192, 5.3}, {"MI355X", 2516.6, 5033.2, 288, 8.0},
		{"Ascend-910B", 320, 0, 64, 1.6},
	}
}

// LookupGPU finds a GPU by name. It ignores case, the vendor, its brands, spaces, hyphens and
// underscores.
func LookupGPU(name string) (GPU, error) {
	wanted := foldGPU(name)
	var names []string
	for _, g := range GPUs() {
		if foldGPU(g.Name) == wanted {
			return g, nil
		}
		names = append(names, g.Name)
	}
	if near := spelling.Nearest(name, names, 4); len(near) > 0 {
		return GPU{}, fmt.Errorf("unknown GPU %.40q; similar names: %s", name, strings.Join(near, ", "))
	}
	return GPU{}, fmt.Errorf("unknown GPU %.40q; known: %s", name, strings.Join(names, ", "))
}

func foldGPU(name string) string {
	name = strings.NewReplacer(" ", "", "-", "", "_", "").Replace(strings.ToLower(name))
	for _, vendor := range []string{"nvidia", "geforce", "rtx", "amd", "instinct", "huawei", "ascend"} {
		name = strings.TrimPrefix(name, vendor)
	}
	return strings.TrimSuffix(strings.TrimSuffix(name, "sxm"), "blackwell")
}

// Hardware is the set of GPUs of one engine instance.
type Hardware struct {
	GPU   GPU
	Count int
	FP8   bool // computes in FP8, not BF16
	TP    int  // tensor-parallel ranks; zero is Count
	Hosts int  // on which the GPUs are; zero is one
}

// Ranks returns the tensor-parallel ranks.
func (h Hardware) Ranks() transformer.Ranks {
	return transformer.Ranks{TP: cmp.Or(h.TP, h.Count), Hosts: h.Hosts}
}

const maxGPUs = 4096

// Check returns an error that says what is wrong with the hardware.
func (h Hardware) Check() error {
	switch {
	case h.Count < 1 || h.Count > maxGPUs:
		return fmt.Errorf("prefill: GPUs must be 1 to %d, not %d", maxGPUs, h.Count)
	case h.TP < 0 || h.TP > h.Count:
		return fmt.Errorf("prefill: tensor-parallel ranks must be 1 to the number of GPUs, %d, not %d", h.Count, h.TP)
	case h.Hosts < 0 || h.Hosts > h.Count:
		return fmt.Errorf("prefill: hosts must be 1 to the number of GPUs, %d, not %d", h.Count, h.Hosts)
	case h.FP8 && h.GPU.FP8TFLOPS == 0:
		return fmt.Errorf("prefill: no FP8 speed is known for %s; compute in BF16", h.GPU.Name)
	case !(h.tflops() > 0 && h.tflops() <= 1e9): // also a NaN
		return fmt.Errorf("prefill: TFLOPS of %s must be positive, not %g", h.GPU.Name, h.tflops())
	}
	return nil
}

func (h Hardware) tflops() float64 {
	if h.FP8 {
		return h.GPU.FP8TFLOPS
	}
	return h.GPU.BF16TFLOPS
}

// FLOPS returns the peak rate of all GPUs together, in operations per second.
func (h Hardware) FLOPS() float64 { return h.tflops() * 1e12 * float64(h.Count) }

// MemoryBytes returns the size of all GPUs' memory, 0 if it is unknown.
func (h Hardware) MemoryBytes() float64 { return h.GPU.MemoryGB * 1e9 * float64(h.Count) }

// MemoryBytesPerSecond returns the bandwidth of all GPUs' memory, 0 if it is unknown.
func (h Hardware) MemoryBytesPerSecond() float64 { return h.GPU.MemoryTBps * 1e12 * float64(h.Count) }

func (h Hardware) String() string {
	if h.Hosts > 1 {
		return fmt.Sprintf("%dx%dx%s", h.Hosts, h.Count/h.Hosts, h.GPU.Name)
	}
	return fmt.Sprintf("%dx%s", h.Count, h.GPU.Name)
}
