package rtpfiles

import (
	"encoding/binary"
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/kvcm"
	"github.com/kv3fs/kv3fs/internal/layout/rtpllm"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// engineFormat is the Format of blocks that have a file of their own, beside an engine's files
// of several.
type engineFormat interface {
	blockfiles.Packed

	// file returns a key that stands for the file of some blocks, and whether there can be
	// one. Unlike Pack it also names that of one block.
	file(blocks []kv.Key) (kv.Key, bool)

	// fileName returns the name of a file by its key, parseFile the key by the name.
	fileName(file kv.Key) string
	parseFile(name string) (kv.Key, bool)

	// fixed reports whether the place of a block in its prompt says where in a file it is.
	fixed() bool
}

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
	key, ok := ownKey(name)
	_, isNumber := key.Int64()
	return key, ok && !isNumber
}

// ownKey reads a name that no engine looks for, which is a key's digits.
func ownKey(name string) (kv.Key, bool) {
	key, err := keys.ParseKey(name)
	return key, err == nil && strings.ToLower(name) == name
}

// pair and unpair make a key of the two numbers in a file's name, and the reverse.
func pair(a, b uint64) (file kv.Key) {
	binary.BigEndian.PutUint64(file[:8], a)
	binary.BigEndian.PutUint64(file[8:], b)
	return file
}

func unpair(file kv.Key) (a, b uint64) {
	return binary.BigEndian.Uint64(file[:8]), binary.BigEndian.Uint64(file[8:])
}

// rtpllmFormat is that of RTP-LLM's own 3FS tier.
type rtpllmFormat struct{ flat }

// Place returns the item of a block alone. Where items have several blocks, a block whose
// item is not complete has a name that RTP-LLM does not look for: from the last item of a
// prompt it concludes that all before are there.
func (f rtpllmFormat) Place(key kv.Key) (blockfiles.Place, error) {
	if n, ok := key.Int64(); ok && f.most == 1 {
		return f.place(rtpllm.Item{First: n, Last: n}.Name())
	}
	return f.place(key.String())
}

// Key is the inverse of Place.
func (f rtpllmFormat) Key(name string) (kv.Key, bool) {
	if f.most > 1 {
		return ownKey(name)
	}
	if item, ok := rtpllm.ParseItem(name); ok {
		return keys.Int64Key(item.First), item.First == item.Last
	}
	return otherKey(name)
}

// Pack returns the item of some blocks.
func (f rtpllmFormat) Pack(blocks []kv.Key) (string, bool) {
	file, ok := f.file(blocks)
	return f.fileName(file), ok && blocks[0] != blocks[len(blocks)-1]
}

// InPack reports whether an item is whole: RTP-LLM writes its blocks at the same time.
func (f rtpllmFormat) InPack(bytes int64, _, blocks int) bool {
	n, whole := rtpllm.Blocks(bytes, f.blockBytes, blocks)
	return whole && n == blocks
}

func (rtpllmFormat) NamesAll() bool { return false }

func (rtpllmFormat) file(blocks []kv.Key) (kv.Key, bool) {
	first, isFirst := blocks[0].Int64()
	last, isLast := blocks[len(blocks)-1].Int64()
	return pair(uint64(first), uint64(last)), isFirst && isLast
}

func (rtpllmFormat) fileName(file kv.Key) string {
	first, last := unpair(file)
	return rtpllm.Item{First: int64(first), Last: int64(last)}.Name()
}

func (rtpllmFormat) parseFile(name string) (kv.Key, bool) {
	item, ok := rtpllm.ParseItem(name)
	return pair(uint64(item.First), uint64(item.Last)), ok
}

// fixed: RTP-LLM cuts a prompt into items from its first block on.
func (rtpllmFormat) fixed() bool { return true }

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
	file, ok := f.file(blocks)
	return f.fileName(file), ok
}

// InPack reports whether the bytes reach the end of a block: the SDK writes the blocks of a
// file one after the other.
func (f kvcmFormat) InPack(bytes int64, block, _ int) bool {
	return bytes >= int64(block+1)*f.blockBytes
}

func (kvcmFormat) NamesAll() bool { return true }

func (f kvcmFormat) file(blocks []kv.Key) (kv.Key, bool) {
	if len(blocks) < 2 {
		return kv.Key{}, false
	}
	numbers := make([]int64, len(blocks))
	for i, key := range blocks {
		n, ok := key.Int64()
		if !ok {
			return kv.Key{}, false
		}
		numbers[i] = n
	}
	name, _ := kvcm.ParseName(kvcm.Name(f.instance, f.spec, numbers...))
	return pair(uint64(name.First), name.Hash), true
}

func (kvcmFormat) fileName(file kv.Key) string {
	first, hash := unpair(file)
	return kvcm.FileName{First: int64(first), Many: true, Hash: hash}.String()
}

func (kvcmFormat) parseFile(name string) (kv.Key, bool) {
	n, ok := kvcm.ParseName(name)
	return pair(uint64(n.First), n.Hash), ok && n.Many
}

// fixed: the manager fills files with what one startWriteCache lacks.
func (kvcmFormat) fixed() bool { return false }

// fileFormat is that of an engine's files of so many blocks each, by the files' keys.
type fileFormat struct {
	engineFormat
	flat   flat
	blocks int
}

func (f fileFormat) Place(file kv.Key) (blockfiles.Place, error) {
	return blockfiles.Place{Dir: ".", Name: f.fileName(file), Bytes: int64(f.blocks) * f.flat.blockBytes}, nil
}

func (f fileFormat) Key(name string) (kv.Key, bool) { return f.parseFile(name) }
func (f fileFormat) MostPacked() int                { return 0 }

var (
	_ engineFormat = rtpllmFormat{}
	_ engineFormat = kvcmFormat{}
)

// oneBlock returns the block of an item that begins and ends with it.
func oneBlock(file kv.Key) (kv.Key, bool) {
	first, last := unpair(file)
	return keys.Int64Key(int64(first)), first == last
}
