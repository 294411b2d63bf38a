//go:build race

package usrbio

const raceEnabled = true
