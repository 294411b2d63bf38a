// Package enginebench measures what a store of KV blocks is worth to an inference
// engine: it is one, except that its GPUs only take their time.
//
// Prompts are made of token ids and hashed, their blocks looked up, those that are
// there loaded, and those that are not computed and dumped. All of that is real
// but computing: for that a clock runs as long as package prefill says. A request
// is computed layer by layer, each layer when its part of every loaded block has
// landed and the layer before is done; requests take turns on the GPUs, first come,
// first served.
//
// Blocks are smaller than real ones by a scale, and so is the bandwidth of a
// simulated store, so that every byte takes the time that it would have taken.
//
// Every block that was loaded is checked, after the request has been measured.
package enginebench
