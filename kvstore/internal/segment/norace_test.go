//go:build !race

package segment

// raceEnabled is for tests that the race detector makes too slow.
const raceEnabled = false
