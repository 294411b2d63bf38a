package rtpfiles

import (
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// flat is what both formats have in common: a directory with a file for each block, which
// has nothing else in it.
type flat struct {
	blockBytes int64
	most       int // blocks in a file of the engine's
}

func (f flat) place(name string) (blockfiles.Place, error) {
	return blockfiles.Place{Dir: ".", Name: name, Bytes: f.blockBytes}, nil
}

func (flat) HasBlocks(string) bool          { return false }
func (flat) Root(kv.Key, int) int           { return 0 }
func (flat) Head(kv.Key) []byte             { return nil }
func (flat) CheckHead(kv.Key, []byte) error { return nil }
func (flat) Unfinished(kv.Key) string       { return "" }
func (f flat) MostPacked() int              { return f.most }

// otherKey reads the name of a block whose key stands for no number.
func otherKey(name string) (kv.Key, bool) {
	key, err := keys.ParseKey(name)
	if err != nil || strings.ToLower(name) != name {
		return kv.Key{}, false
	}
	_, isNumber := key.Int64()
	return key, !isNumber
}

// rtpllmFormat is that of RTP-LLM's own 3FS tier.
type rtpllmFormat struct{ flat }

// Place returns the item of a block alone, which RTP-LLM would write for it.
func (f rtpllmFormat) Place(key kv.Key) (blockfiles.Place, error) {
	if n, ok := key.Int64(); ok {
		return f.place(rtpllm.Item{First: n, Last: n}.Name())
	}
	return f.place(key.String())
}

// Key reads the name of an item with one block.
func (rtpllmFormat) Key(name string) (kv.Key, bool) {
	if item, ok := rtpllm.ParseItem(name); ok {
		return keys.Int64Key(item.First), item.First == item.Last
	}
	return otherKey(name)
}

// Pack returns the item of some blocks.
func (rtpllmFormat) Pack(blocks []kv.Key) (string, bool) {
	first, isFirst := blocks[0].Int64()
	last, isLast := blocks[len(blocks)-1].Int64()
	return rtpllm.Item{First: first, Last: last}.Name(), isFirst && isLast && first != last
}

// InPack reports whether an item is whole: RTP-LLM writes its blocks at the same time.
func (f rtpllmFormat) InPack(bytes int64, _, blocks int) bool {
	n, whole := rtpllm.Blocks(bytes, f.blockBytes, blocks)
	return whole && n == blocks
}

// kvcmFormat is that of KVCM, for one instance and spec.
type kvcmFormat struct {
	flat
	instance, spec string
}

// Place returns the file that KVCM's manager names for a block alone.
func (f kvcmFormat) Place(key kv.Key) (blockfiles.Place, error) {
	if n, ok := key.Int64(); ok {
		return f.place(kvcm.Name(f.instance, f.spec, n))
	}
	return f.place(key.String())
}

// Key reads the name of a file with one block.
func (kvcmFormat) Key(name string) (kv.Key, bool) {
	if file, ok := kvcm.ParseName(name); ok {
		return keys.Int64Key(file.First), !file.Many
	}
	return otherKey(name)
}

// Pack returns the file of some blocks. Its name depends on all of them.
func (f kvcmFormat) Pack(blocks []kv.Key) (string, bool) {
	numbers := make([]int64, len(blocks))
	for i, key := range blocks {
		n, ok := key.Int64()
		if !ok {
			return "", false
		}
		numbers[i] = n
	}
	return kvcm.Name(f.instance, f.spec, numbers...), true
}

// InPack reports whether the bytes reach the end of a block: the SDK writes the blocks of a
// file one after the other.
func (f kvcmFormat) InPack(bytes int64, block, _ int) bool {
	return bytes >= int64(block+1)*f.blockBytes
}

var (
	_ blockfiles.Packed = rtpllmFormat{}
	_ blockfiles.Packed = kvcmFormat{}
)
