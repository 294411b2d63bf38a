package enginebench

import "time"

// Times of the simulated engine are durations since it began, in its own time.

// job is a request on the GPUs.
type job struct {
	prompt   int // tokens
	together int // requests that came with it
	output   int // tokens to generate; the first one ends the prefill

	inMemory int             // blocks of it in the engine's memory
	done     int             // tokens of its context that are loaded or computed
	looked   time.Duration   // when it was known what is to be loaded
	ready    time.Duration   // when that had its first layer
	landed   []time.Duration // when each layer of what was loaded had landed; nil if nothing was
	begun    bool            // a pass has computed a part of it
	stalled  time.Duration   // the GPUs waited for its bytes

	tokens []time.Duration // when each of its output tokens was there

	of *request // nil in a calculation
}

// cache marks tokens as loaded. The last token of a prompt is always computed, for its
// output.
func (j *job) cache(tokens int) { j.done = min(tokens, j.prompt-1) }

// left returns how many tokens of the prompt are not computed yet.
func (j *job) left() int { return max(j.prompt-j.done, 0) }

// gpus are the simulated GPUs. They compute in forward passes, one after the other, as
// vLLM does: a pass generates one token for every request that decodes, and computes the
// first prompt in the order in which they were scheduled: as a whole or, with a chunk
// size, the next part of it.
type gpus struct {
	cost   func([]part) time.Duration // of a pass
	layers int
	chunk  int // most tokens of a pass; 0: no limit

	prefills []*job
	decodes  []*job
	free     time.Duration // when the last pass ended
}

// part is what a forward pass computes of a request.
type part struct {
	from, to int // tokens of its context before and after
	prompt   int
	together int
}

// next returns the prompt of which the next pass computes a part, or nil.
func (g *gpus) next(ready func(*job) bool) *job {
	if len(g.prefills) == 0 {
		return nil
	}
	if j := g.prefills[0]; j.begun || ready(j) {
		return j
	}
	return nil
}

// run computes a pass when the GPUs are free and the prompt, which may be nil, is ready,
// each layer when it has landed. It returns which request got its first token and which
// ones their last, at g.free.
func (g *gpus) run(prompt *job) (first *job, last []*job) {
	var parts []part
	for _, j := range g.decodes {
		parts = append(parts, part{j.done, j.done + 1, j.prompt, j.together})
		j.done++
	}
	free := g.free
	begin := free
	if prompt != nil {
		n := prompt.left()
		if g.chunk > 0 {
			n = min(n, max(g.chunk-len(g.decodes), 1))
		}
		parts = append(parts, part{prompt.done, prompt.done + n, prompt.prompt, prompt.together})
		prompt.done += n
		begin = max(begin, prompt.ready)
	}
	whole := g.cost(parts)
	each := whole / time.Duration(g.layers)
	end := begin + whole%time.Duration(g.layers)
	for layer := range g.layers {
		if prompt != nil && prompt.landed != nil {
			end = max(end, prompt.landed[layer])
		}
		end += each
	}
	g.free = end
	generating := g.decodes
	if prompt != nil {
		prompt.begun, prompt.landed = true, nil
		prompt.stalled += end - whole - max(free, prompt.looked)
		if prompt.left() == 0 {
			first = prompt
			g.prefills = g.prefills[1:]
			generating = append(generating, prompt)
		}
	}
	g.decodes = nil
	for _, j := range generating {
		if j.tokens = append(j.tokens, end); len(j.tokens) < j.output {
			g.decodes = append(g.decodes, j)
		} else {
			last = append(last, j)
		}
	}
	return first, last
}

// gpus returns the idle GPUs of an engine.
func (s *Subject) gpus(o Options) gpus {
	return gpus{cost: s.pass, layers: s.profile.Model.Layers, chunk: max(o.ChunkTokens, 0)}
}

// pass returns how long the GPUs take for a forward pass: as long as its operations take,
// and at least as long as reading the weights and the requests' KV from GPU memory.
func (s *Subject) pass(parts []part) time.Duration {
	p := s.profile
	var seconds float64
	var tokens, context int
	for _, part := range parts {
		seconds += p.Model.FLOPs(part.from, part.to) / (p.Hardware.FLOPS() * p.MFU(part.prompt, part.together))
		tokens += part.to - part.from
		context += part.from
	}
	read := p.Floor(tokens)
	if bandwidth := p.Hardware.MemoryBytesPerSecond(); bandwidth > 0 {
		read += time.Duration(float64(context) * float64(s.tokenBytes) / bandwidth * float64(time.Second))
	}
	return max(time.Duration(seconds*float64(time.Second)), read, 1)
}
