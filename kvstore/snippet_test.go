//lint:file-ignore SA4006 The snippet shows the calls and leaves out what a program does with errors.

package kvstore_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// snippet is what the package comment, README.md and docs/kvstore.md show. It is only
// compiled: nothing may be mounted here.
func snippet(ctx context.Context, blocks []kvstore.Key, bufs, fresh [][]byte) error {
	// snippet begins
	store, err := kvstore.Open("Cache|Ds3fs", kvstore.Config{
		Namespace: keys.Namespace{Model: "Qwen/QwQ-32B", BlockTokens: 128, Layers: 64},
		Layout:    kvstore.Layout{BlockBytes: 32 << 20, ShardBytes: 512 << 10}, // a shard is a layer's part
		Ds3fs:     &kvstore.Ds3fsOptions{Mount: "/mnt/3fs"},
	})
	layout := store.Layout()
	n, err := store.LookupPrefix(ctx, blocks)                      // how many of the first blocks are stored
	load, err := store.Load(ctx, layout.ByLayer(blocks[:n], bufs)) // into your memory, layer by layer
	<-load.Landed(0)
	err = load.LandedErr(0) // nil: compute with layer 0 while the others land
	save, err := store.Save(ctx, layout.ByBlock(blocks[n:], fresh))
	err = save.Wait(ctx)
	err = store.Close() // writes what was saved, and gives the memory back
	// snippet ends
	return err
}

// The snippet is the same in every place that shows one.
func TestSnippetIsShown(t *testing.T) {
	_ = snippet
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, code, _ := strings.Cut(read("snippet_test.go"), "// snippet begins\n")
	code, _, _ = strings.Cut(code, "\t// snippet ends")
	code = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(code, "")
	if comment := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(code, "\n"), "//\t"); !strings.Contains(read("doc.go"), comment) {
		t.Errorf("doc.go does not have\n%s", comment)
	}
	for _, name := range []string{"../docs/kvstore.md", "../README.md"} {
		shown := regexp.MustCompile("(?s)```go\n(store, err := kvstore.*?)```").FindStringSubmatch(read(name))
		switch {
		case shown == nil || strings.ReplaceAll(shown[1], "    ", "\t") != strings.ReplaceAll(code, "    ", "\t"):
			t.Errorf("%s does not have\n%s", name, code)
		}
	}
}
