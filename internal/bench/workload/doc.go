// Package workload makes, reads and replays prompt traces: it does what an inference
// engine does to its KV cache, without the engine.
//
// Trace files are those of Mooncake: one request a line, with one id for every
// 512 tokens of its prompt. Ids are chained on the prefix, so equal ids mean equal prompts
// up to there. Replay turns ids into files, bytes and ring I/O and checks every byte that
// it loads. It uses the mount and package usrbio and does not depend on the daemon.
package workload
