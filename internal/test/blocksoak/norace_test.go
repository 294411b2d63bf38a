//go:build !race

package blocksoak

// fewFlips is how many flips there are of each kind, where KV3FS_CORRUPTIONS does not say.
const fewFlips = 4000

var damagedStores = stores
