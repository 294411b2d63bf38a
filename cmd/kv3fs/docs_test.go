package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every command line of ours in a shell block of the documents is one that the binary
// accepts. docs/engines is run as well, by internal/test/doctest.
func TestCommandsInDocuments(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	engines, err := filepath.Glob("../../docs/engines/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, engines...), "../../README.md", "../../clients/python/README.md", "../../clients/c/README.md")
	blocks := regexp.MustCompile("(?ms)^```sh.*?^```")
	command := regexp.MustCompile(`^(?:\{ )?(?:bin/)?kv3fs ([^|&>;#]*)`)
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks.FindAllString(string(text), -1) {
			for line := range strings.Lines(block) {
				found := command.FindStringSubmatch(strings.TrimSpace(line))
				if found == nil {
					continue
				}
				seen++
				args := strings.Fields(strings.ReplaceAll(found[1], "HOST:PORT", "127.0.0.1:18000"))
				if _, err := grammar(t).Parse(args); err != nil {
					t.Errorf("%s: kv3fs %s: %v", file, found[1], err)
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("found only %d commands", seen)
	}
}
