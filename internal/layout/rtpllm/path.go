package rtpllm

import (
	"path"
	"strconv"
	"strings"
)

const (
	// Version is the directory that tells this layout from the one before.
	Version = "v2"
	// NoLoRA is the directory of blocks that no adapter has changed.
	NoLoRA = "no_lora"
)

// Dir is whose blocks a directory has.
type Dir struct {
	Biz         string // BIZ_NAME; it may have slashes in it
	Checkpoint  uint64 // Hash of CHECKPOINT_PATH
	LoRA        string // NoLoRA, or the Hash of the adapter's path in decimal digits
	BlockTokens int
	DType       int  // RTP-LLM's number of the cache's element type
	MLA         bool // the cache has latent vectors instead of keys and values
	TPSize      int
	TPRank      int
}

// Path returns the directory's path below the root.
func (d Dir) Path() string { return path.Join(d.Biz, Version, d.below()) }

// below is the part of the path that both versions of the layout have.
func (d Dir) below() string {
	mla := "0"
	if d.MLA {
		mla = "1"
	}
	return path.Join(strconv.FormatUint(d.Checkpoint, 10), d.LoRA, strconv.Itoa(d.BlockTokens), strconv.Itoa(d.DType),
		mla, strconv.Itoa(d.TPSize), strconv.Itoa(d.TPRank))
}

// depth is how many directories below returns.
const depth = 7

// ParseDir reads a path that Path returns, and reports whether it is one.
func ParseDir(p string) (Dir, bool) {
	biz, rest, ok := cut(p)
	biz, version := path.Split(biz)
	if !ok || version != Version {
		return Dir{}, false
	}
	d, ok := parseBelow(rest)
	d.Biz = strings.TrimSuffix(biz, "/")
	return d, ok && isBiz(d.Biz)
}

// isBiz reports whether a name leads to a directory below the root.
func isBiz(name string) bool {
	return name != "" && path.Clean(name) == name && !strings.HasPrefix(name, "/") && name != "." && name != ".." && !strings.HasPrefix(name, "../")
}

// cut separates the last directories of a path from the ones before.
func cut(p string) (before, last string, ok bool) {
	at := len(p)
	for range depth {
		if at = strings.LastIndexByte(p[:at], '/'); at < 0 {
			return "", "", false
		}
	}
	return p[:at], p[at+1:], true
}

func parseBelow(p string) (d Dir, ok bool) {
	var parts [depth]string
	for i := range parts {
		parts[i], p, _ = strings.Cut(p, "/")
	}
	ok = p == ""
	number := func(i, least int) int {
		n, err := strconv.Atoi(parts[i])
		ok = ok && err == nil && n >= least && isCanonical(parts[i])
		return n
	}
	checkpoint, err := strconv.ParseUint(parts[0], 10, 64)
	ok = ok && err == nil && isCanonical(parts[0])
	d = Dir{
		Checkpoint:  checkpoint,
		LoRA:        parts[1],
		BlockTokens: number(2, 1),
		DType:       number(3, 0),
		MLA:         parts[4] == "1",
		TPSize:      number(5, 1),
		TPRank:      number(6, 0),
	}
	if _, err := strconv.ParseUint(d.LoRA, 10, 64); err != nil && d.LoRA != NoLoRA {
		return Dir{}, false
	}
	return d, ok && (d.MLA || parts[4] == "0") && d.TPRank < d.TPSize
}

// isCanonical reports whether a number that has been read is written as it would be again.
func isCanonical(number string) bool {
	digits := strings.TrimPrefix(number, "-")
	return digits[0] != '+' && (digits[0] != '0' || number == "0")
}

// Check returns whether RTP-LLM could have such a directory.
func (d Dir) Check() bool {
	back, ok := ParseDir(d.Path())
	return ok && back == d
}

// File is a file of RTP-LLM's.
type File struct {
	Dir
	Item

	// Old is set for a file of the layout before Version. It has all blocks of a prompt
	// up to Last, in a form that is not read.
	Old bool
}

// Parse reads the path of a file below the root, and reports whether it is one of
// RTP-LLM's.
func Parse(p string) (File, bool) {
	dir, name := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	if d, ok := ParseDir(dir); ok {
		item, ok := ParseItem(name)
		return File{Dir: d, Item: item}, ok
	}
	biz, rest, ok := cut(dir)
	if !ok || !isBiz(biz) {
		return File{}, false
	}
	d, ok := parseBelow(rest)
	last, isKey := parseKey(name)
	if !ok || !isKey {
		return File{}, false
	}
	d.Biz = biz
	return File{Dir: d, Item: Item{Last: last}, Old: true}, true
}

// DType returns RTP-LLM's number of an element type by torch's name for it, and whether
// its cache can have such elements.
func DType(name string) (number int, ok bool) {
	switch strings.TrimPrefix(name, "torch.") {
	case "float16", "half", "fp16":
		return 10, true
	case "float32", "float", "fp32":
		return 11, true
	case "bfloat16", "bf16":
		return 14, true
	case "int8":
		return 6, true
	case "fp8", "fp8_e4m3", "float8_e4m3fn":
		return 15, true
	}
	return 0, false
}
