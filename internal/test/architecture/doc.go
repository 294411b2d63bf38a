// Package architecture holds the rules of the house as tests: who may import whom, and
// what may stand where. It has no code of its own.
package architecture
