package rtpllm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lines are hashed by testdata/hash.cc; wanted is what it printed with g++ 12.2 on x86-64.
var lines = []string{
	"", "a", "abc", "abcdefg", "abcdefgh", "abcdefghi", "abcdefghijklmnop", "abcdefghijklmnopqrs",
	"/models/Qwen/QwQ-32B", "模型/路径", "\xff\x80z",
}

const wanted = `6142509188972423790
4993892634952068459
3663726644998027833
16063891478991045295
8664279048047335611
13036955925923793583
9002761040096737846
16286187538772676802
3698816947109647175
2609965705517385321
17218918446183194824
`

// computed is what this package computes for them, in the same form.
func computed() string {
	var b strings.Builder
	for _, line := range lines {
		fmt.Fprintln(&b, Hash(line))
	}
	return b.String()
}

func TestHashes(t *testing.T) {
	if got := computed(); got != wanted {
		t.Errorf("got\n%swant\n%s", got, wanted)
	}
}

// TestHashesOfCompiler compares with the C++ library that is at hand.
func TestHashesOfCompiler(t *testing.T) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("no g++ here; TestHashes has what one printed")
	}
	binary := filepath.Join(t.TempDir(), "hash")
	if out, err := exec.CommandContext(t.Context(), compiler, "-o", binary, "testdata/hash.cc").CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := computed(); got != string(out) {
		t.Errorf("got\n%sthe compiler's\n%s", got, out)
	}
}
