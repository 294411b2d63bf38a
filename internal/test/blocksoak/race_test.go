//go:build race

package blocksoak

// damages are few under the race detector, which makes them slow; scripts/test runs
// all of them without it.
const damages = 1000
