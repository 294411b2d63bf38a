//go:build !race

package blocksoak

// damages is how many corruptions each chain takes; all chains together take more
// than 10^5.
const damages = 26_000
