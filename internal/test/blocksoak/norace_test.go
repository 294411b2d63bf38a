//go:build !race

package blocksoak

// flips is how many bytes of data each chain has flipped, and how many of what describes
// the data: logs of checksums, heads, headers, indexes.
const flips = 100_000
