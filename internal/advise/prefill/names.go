package prefill

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// compute holds the cost of a model, besides its shape.
type compute struct {
	billions         float64 // published number of parameters used for each token
	queryHeads       int
	keyDim, valueDim int // zero means the shape's
	windowed         int
	weights          Weights // Params in billions; the zero value is dense BF16
}

func dense(billions float64, queryHeads int) compute {
	return compute{billions: billions, queryHeads: queryHeads}
}

func latent(billions float64, queryHeads int) compute {
	return compute{billions: billions, queryHeads: queryHeads, keyDim: 128 + 64, valueDim: 128}
}

// sparse adds to a model all its parameters, and its experts.
func (c compute) sparse(billions float64, experts, perToken int) compute {
	c.weights = Weights{Params: billions, BytesPerParam: 2, Experts: experts, ExpertsPerToken: perToken}
	return c
}

// stored sets the size of the published weights, if it is not BF16.
func (c compute) stored(bytesPerParam float64) compute {
	c.weights.BytesPerParam = bytesPerParam
	return c
}

// costs returns the costs of the models whose shapes internal/advise/model knows.
func costs() map[string]compute {
	return map[string]compute{
		"Llama-2-7B": dense(6.74, 32), "Llama-2-13B": dense(13.0, 40), "Llama-2-70B": dense(69.0, 64),
		"Llama-3-8B": dense(8.03, 32), "Llama-3-70B": dense(70.6, 64),
		"Llama-3.1-8B": dense(8.03, 32), "Llama-3.1-70B": dense(70.6, 64), "Llama-3.1-405B": dense(406, 128),
		"Llama-3.2-1B": dense(1.24, 32), "Llama-3.2-3B": dense(3.21, 24), "Llama-3.3-70B": dense(70.6, 64),

		"Qwen2.5-0.5B": dense(0.494, 14), "Qwen2.5-1.5B": dense(1.54, 12), "Qwen2.5-3B": dense(3.09, 16),
		"Qwen2.5-7B": dense(7.62, 28), "Qwen2.5-14B": dense(14.77, 40), "Qwen2.5-32B": dense(32.8, 40), "Qwen2.5-72B": dense(72.7, 64),
		"Qwen2.5-Coder-7B": dense(7.62, 28), "Qwen2.5-Coder-32B": dense(32.8, 40), "QwQ-32B": dense(32.8, 40),
		"Qwen3-0.6B": dense(0.596, 16), "Qwen3-1.7B": dense(1.72, 16), "Qwen3-4B": dense(4.02, 32), "Qwen3-8B": dense(8.19, 32),
		"Qwen3-14B": dense(14.8, 40), "Qwen3-32B": dense(32.8, 64),
		"Qwen3-30B-A3B": dense(3.3, 32).sparse(30.5, 128, 8), "Qwen3-235B-A22B": dense(22, 64).sparse(235, 128, 8),
		"Qwen3-Coder-30B-A3B": dense(3.3, 32).sparse(30.5, 128, 8), "Qwen3-Coder-480B-A35B": dense(35, 96).sparse(480, 160, 8),

		"DeepSeek-V2-Lite": latent(2.4, 16).sparse(15.7, 64, 6), "DeepSeek-V2": latent(21, 128).sparse(236, 160, 6),
		"DeepSeek-V3": latent(37, 128).sparse(671, 256, 8).stored(1), "DeepSeek-V3.1": latent(37, 128).sparse(671, 256, 8).stored(1), "DeepSeek-R1": latent(37, 128).sparse(671, 256, 8).stored(1),
		"DeepSeek-R1-Distill-Qwen-1.5B": dense(1.78, 12), "DeepSeek-R1-Distill-Qwen-7B": dense(7.62, 28),
		"DeepSeek-R1-Distill-Qwen-14B": dense(14.77, 40), "DeepSeek-R1-Distill-Qwen-32B": dense(32.8, 40),
		"DeepSeek-R1-Distill-Llama-8B": dense(8.03, 32), "DeepSeek-R1-Distill-Llama-70B": dense(70.6, 64),
		"Kimi-K2": latent(32, 64).sparse(1026, 384, 8).stored(1),

		"Mistral-7B": dense(7.25, 32), "Mistral-Nemo": dense(12.2, 32), "Mistral-Small-24B": dense(23.6, 32),
		"Mistral-Large-Instruct-2407": dense(123, 96), "Mistral-Large-Instruct-2411": dense(123, 96),
		"Mixtral-8x7B": dense(12.9, 32).sparse(46.7, 8, 2), "Mixtral-8x22B": dense(39.1, 48).sparse(141, 8, 2),

		"GLM-4-9B": dense(9.4, 32), "GLM-4-32B": dense(32.6, 48),
		"GLM-4.5": dense(32, 96).sparse(355, 160, 8), "GLM-4.5-Air": dense(12, 96).sparse(106, 128, 8), "GLM-4.6": dense(32, 96).sparse(355, 160, 8),

		// Every other layer attends to 128 tokens only.
		"gpt-oss-20b":  compute{billions: 3.6, queryHeads: 64, windowed: 12}.sparse(20.9, 32, 4).stored(0.53),
		"gpt-oss-120b": compute{billions: 5.1, queryHeads: 64, windowed: 18}.sparse(116.8, 128, 4).stored(0.53),

		"Phi-4": dense(14.7, 40), "Yi-34B": dense(34.4, 56),
	}
}

// Lookup finds a model by its name, which internal/advise/model must know.
func Lookup(name string) (Model, error) {
	shape, err := model.Lookup(name)
	if err != nil {
		return Model{}, err
	}
	c, ok := costs()[shape.Name]
	if !ok {
		return Model{}, fmt.Errorf("prefill: the shape of %s is known, but not its parameters and query heads; give them by hand", shape.Name)
	}
	w := c.weights
	w.Params *= 1e9
	if w.Params == 0 {
		w = Weights{Params: c.billions * 1e9, BytesPerParam: 2}
	}
	return Model{
		Shape: shape, Params: c.billions * 1e9, QueryHeads: c.queryHeads,
		KeyDim: c.keyDim, ValueDim: c.valueDim, WindowedLayers: c.windowed, Weights: w,
	}, nil
}
