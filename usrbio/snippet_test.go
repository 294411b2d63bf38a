//lint:file-ignore SA4006 The snippet shows the calls and leaves out what a program does with errors.

package usrbio_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/usrbio"
)

// snippet is what README.md shows. It is only compiled: nothing may be mounted here.
func snippet(ctx context.Context, file *os.File, completions []usrbio.Completion) (int, error) {
	// snippet begins
	m, err := usrbio.Open(ctx, "/mnt/3fs")
	iov, err := m.NewIov(ctx, 64<<20, usrbio.IovOptions{})
	ring, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 64})
	f, err := m.Register(ctx, file)
	slot, err := ring.Prepare(usrbio.Request{File: f, FileOffset: 0, Iov: iov, IovOffset: 0, Bytes: 1 << 20})
	err = ring.Submit()
	n, err := ring.Wait(ctx, completions, 1)
	// snippet ends
	return slot + n, err
}

// README.md shows the snippet as it compiles.
func TestSnippetIsShown(t *testing.T) {
	_ = snippet
	text, err := os.ReadFile("snippet_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(text), "// snippet begins\n")
	code, _, _ = strings.Cut(code, "\t// snippet ends")
	code = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(code, "")
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+code+"```") {
		t.Errorf("README.md does not have\n%s", code)
	}
}
