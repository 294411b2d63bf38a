package main

import (
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// A report's command is one that a shell takes as it was given.
func TestShellCommand(t *testing.T) {
	args := []string{"bench", "ring", "--scratch=/dev/shm", "", "it's", "a b", "$HOME", "x\ny", "--sizes", "4KiB,1MiB"}
	text := shellCommand(args)
	words, err := shellwords.Split(text)
	if err != nil || !slices.Equal(words, append([]string{"kv3fs"}, args...)) {
		t.Errorf("%s: %q, %v", text, words, err)
	}
	if got := shellCommand([]string{"bench", "ring", "--scratch", "/dev/shm"}); got != "kv3fs bench ring --scratch /dev/shm" {
		t.Error(got)
	}
}
