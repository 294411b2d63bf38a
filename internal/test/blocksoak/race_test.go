//go:build race

package blocksoak

// fewFlips are fewer under the race detector, which makes them slow.
const fewFlips = 1000

// damagedStores leave out those that share their code with Posix: scripts/test damages all
// without the race detector.
var damagedStores = []string{"Posix", "Ds3fs", "Segment", "Pages"}
