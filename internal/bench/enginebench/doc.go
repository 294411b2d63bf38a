// Package enginebench measures what a store of KV blocks is worth to an inference
// engine. It is such an engine, except that its GPUs only wait.
//
// Prompts are made of token ids and hashed, and their blocks are looked up. Blocks that
// exist are loaded, and the others are computed and saved. All of that is real except
// computing, which is a wait of the time that package prefill predicts. A request is
// computed layer by layer: a layer begins when its part of every loaded block has landed
// and the layer before is computed. Requests use the GPUs in turn, first come, first
// served.
//
// A scale makes blocks smaller than real ones. It reduces the bandwidth of a simulated
// store as well, so that a block takes as long as a real one.
//
// Every loaded block is checked, after the request has been measured.
package enginebench
