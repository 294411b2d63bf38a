//go:build !race

package ringserver

const raceEnabled = false
