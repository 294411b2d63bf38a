//go:build race

package blocksoak

// flips are few under the race detector, which makes them slow; scripts/test runs all of
// them without it.
const flips = 1000
