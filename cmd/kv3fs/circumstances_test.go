package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
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

// The exact bytes of a command line that is not UTF-8 are in its report, beside those of the report itself.
func TestCircumstancesNotUTF8(t *testing.T) {
	command := shellCommand([]string{"replay", "--mount", "/m\xff"})
	for _, report := range []any{nil, struct{ Mount string }{"/m\xff"}, struct{ Interrupted bool }{true}} {
		var out bytes.Buffer
		if err := writeReport(&out, envelope{Command: "replay", Measured: &measure.Circumstances{Command: command}}, report); err != nil {
			t.Fatal(err)
		}
		var whole map[string]any
		if err := json.Unmarshal(out.Bytes(), &whole); err != nil {
			t.Fatal(err)
		}
		checkNotUTF8(t, "replay", whole)
		if !strings.Contains(out.String(), `"/measured/command"`) {
			t.Errorf("%+v: the bytes of the command are missing: %s", report, &out)
		}
	}
}
