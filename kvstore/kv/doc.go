// Package kv is the contract of the block store: what a Store promises, how
// blocks are named, and how a batch on its way is watched. Package kvstore has
// the same names for programs that use a store; this one is for stores.
package kv
