// Package workload makes, reads and replays prompt traces: it is what an
// inference engine does to its KV cache, without the engine.
//
// Trace files are those of Mooncake: one request a line, with one id for every
// 512 tokens of its prompt, chained on the prefix, so that equal ids mean equal
// prompts up to there. Replay turns ids into files, bytes and ring I/O, and
// checks every byte it loads. It calls the mount and package usrbio and knows
// nothing of the daemon behind them.
package workload
