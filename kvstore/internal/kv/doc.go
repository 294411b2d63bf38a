// Package kv is the contract between the stores of a chain: Store, Task with its
// Settle, counters and errors. Programs use package kvstore, which has types of its
// own and converts at the boundary.
package kv
