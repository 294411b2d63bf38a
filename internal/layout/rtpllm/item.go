package rtpllm

import (
	"strconv"
	"strings"
)

// DefaultItemBlocks is MAX_BLOCK_SIZE_PER_ITEM where it is not set.
const DefaultItemBlocks = 16

// Item is some consecutive blocks of a prompt, by the keys of its first and last block.
type Item struct {
	First, Last int64
}

// Name returns the name of the item's file.
func (i Item) Name() string {
	return strconv.FormatInt(i.First, 10) + "_" + strconv.FormatInt(i.Last, 10)
}

// ParseItem reads a name that Name returns, and reports whether it is one.
func ParseItem(name string) (Item, bool) {
	first, last, _ := strings.Cut(name, "_")
	var i Item
	var ok [2]bool
	i.First, ok[0] = parseKey(first)
	i.Last, ok[1] = parseKey(last)
	return i, ok[0] && ok[1]
}

func parseKey(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && isCanonical(s)
}

// Blocks returns how many whole blocks a file of this size has, and whether it may be a
// whole item: RTP-LLM writes nothing but whole blocks, at most most of them.
func Blocks(sizeBytes, blockBytes int64, most int) (n int, whole bool) {
	if blockBytes <= 0 || sizeBytes <= 0 || sizeBytes/blockBytes > int64(most) {
		return 0, false
	}
	return int(sizeBytes / blockBytes), sizeBytes%blockBytes == 0
}
