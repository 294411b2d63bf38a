package gdsfiles

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// format is the blockfiles.Format of LMCache's GDS backend.
type format struct {
	prefix, suffix string // of the text of LMCache's keys, before and after the hash
	weka           bool
	header         gds.Header
	head           []byte // the header, encoded
	dir            int    // the number of the root to write to
}

var _ blockfiles.Paired = (*format)(nil)

// format2LTD is LMCache's number for keys and values, layers, tokens, elements.
const format2LTD = 1

// mostNameBytes is the longest name that Linux's file systems take.
const mostNameBytes = 255

func newFormat(o Options, weka bool) (*format, error) {
	f := &format{
		prefix: fmt.Sprintf("%s@%d@%d@", o.Model, o.WorldSize, o.WorkerID),
		suffix: "@" + o.DType,
		weka:   weka, dir: o.GPU % len(o.Dirs),
	}
	if o.Model == "" || strings.ContainsAny(o.Model, "@\x00") {
		return nil, fmt.Errorf("kvstore: the model %.60q cannot be in the names of LMCache's files: it must not be empty or have an @ in it", o.Model)
	}
	if o.WorldSize < 1 || o.WorkerID < 0 || o.WorkerID >= o.WorldSize {
		return nil, fmt.Errorf("kvstore: worker %d of %d: LMCache counts workers from 0 to the world size less 1", o.WorkerID, o.WorldSize)
	}
	word, ok := gds.DTypeOf(o.DType)
	if !ok {
		return nil, fmt.Errorf("kvstore: LMCache's GDS backend has no word for the element type %.40q", o.DType)
	}
	if o.Shape == nil {
		size, err := gds.Group{DType: word}.Size()
		if err != nil {
			return nil, err
		}
		if o.Shape, err = shapeOf(o.Layout.BlockBytes, size, o.Layers, o.Tokens); err != nil {
			return nil, err
		}
		o.MemoryFormat = cmp.Or(o.MemoryFormat, format2LTD)
	}
	f.header = gds.Header{DType: word, Shape: o.Shape, Bytes: o.Layout.BlockBytes, Format: o.MemoryFormat}
	var err error
	if f.head, err = f.header.Encode(); err != nil {
		return nil, fmt.Errorf("kvstore: the shape %v of a chunk of %d bytes: %w", o.Shape, o.Layout.BlockBytes, err)
	}
	if longest, err := f.Place(keys.Uint64Key(1 << 63)); err != nil || len(longest.Side)+len(".tmp12345678") > mostNameBytes {
		return nil, fmt.Errorf("kvstore: the name of the model is too long for a file's: %s has %d bytes", longest.Side, len(longest.Side))
	}
	return f, nil
}

// ownTag begins the hashes that stand for keys that are no numbers of 64 bits. LMCache takes
// such a hash for a number of 129 bits, which no chunk of its own has.
const ownTag = "1"

// hashOf returns the hash of the key in the names of files.
func hashOf(key kv.Key) string {
	if n, ok := key.Int64(); ok {
		return strconv.FormatInt(n, 16)
	}
	if n, ok := key.Uint64(); ok {
		return strconv.FormatUint(n, 16)
	}
	return ownTag + key.String()
}

// keyOf is the inverse of hashOf.
func keyOf(hash string) (kv.Key, bool) {
	if id, ok := strings.CutPrefix(hash, ownTag); ok && len(id) == 2*len(kv.Key{}) {
		key, err := keys.ParseKey(id)
		return key, err == nil && hashOf(key) == hash
	}
	var key kv.Key
	if n, err := strconv.ParseInt(hash, 16, 64); err == nil {
		key = keys.Int64Key(n)
	} else if n, err := strconv.ParseUint(hash, 16, 64); err == nil {
		key = keys.Uint64Key(n)
	} else {
		return key, false
	}
	return key, hashOf(key) == hash
}

// Place returns where LMCache has the chunk. Every key has a place.
func (f *format) Place(key kv.Key) (blockfiles.Place, error) {
	hash := hashOf(key)
	dir, err := gds.Dir(hash)
	if err != nil {
		return blockfiles.Place{}, err
	}
	name := gds.Name{Key: f.prefix + hash + f.suffix, Weka: f.weka}
	side := name
	side.Kind = gds.Side
	return blockfiles.Place{
		Dir: dir, Name: name.String(), Side: side.String(),
		Offset: gds.HeaderBytes, Bytes: f.header.FileBytes(),
	}, nil
}

// Key returns the key of a chunk whose data file has this name, if it is one of this model,
// worker and type.
func (f *format) Key(name string) (kv.Key, bool) {
	n, ok := gds.ParseName(name)
	if !ok || n.Kind != gds.Data || n.Temp != "" || n.Weka != f.weka {
		return kv.Key{}, false
	}
	hash, ok := strings.CutPrefix(n.Key, f.prefix)
	if !ok {
		return kv.Key{}, false
	}
	if hash, ok = strings.CutSuffix(hash, f.suffix); !ok {
		return kv.Key{}, false
	}
	return keyOf(hash)
}

// HasBlocks reports whether a directory is one of the two levels, also of a short hash.
func (f *format) HasBlocks(dir string) bool {
	first, second, two := strings.Cut(dir, "/")
	return gds.IsDir(first) && (!two || gds.IsDir(second))
}

// Root returns the root of the GPU.
func (f *format) Root(kv.Key, int) int { return f.dir }

// Head returns the header.
func (f *format) Head(kv.Key) []byte { return f.head }

// CheckHead accepts any header that describes the same payload: LMCache's releases differ in
// the fields that they write.
func (f *format) CheckHead(_ kv.Key, head []byte) error {
	h, err := gds.ParseHeader(head)
	if err != nil {
		return fmt.Errorf("its header: %w", err)
	}
	first := gds.Group{DType: h.DType, Shape: h.Shape}
	switch {
	case h.DType != f.header.DType || h.Format != f.header.Format || !slices.Equal(h.Shape, f.header.Shape):
		return fmt.Errorf("its header describes %s %v in format %d, not %s %v in format %d",
			h.DType, h.Shape, h.Format, f.header.DType, f.header.Shape, f.header.Format)
	case len(h.Groups) > 1 || len(h.Groups) == 1 && (h.Groups[0].DType != first.DType || !slices.Equal(h.Groups[0].Shape, first.Shape)):
		return fmt.Errorf("its header describes %d groups of tensors, not one", len(h.Groups))
	}
	return nil
}

// Other returns the name of the side file of a data file, and the reverse.
func (f *format) Other(dir, name string) (string, bool) {
	n, ok := chunkIn(dir, name)
	n.Kind = gds.Side - n.Kind
	return n.String(), ok && n.Temp == ""
}

// Temporary reports whether LMCache gives a file this name while it writes it.
func (f *format) Temporary(dir, name string) bool {
	n, ok := chunkIn(dir, name)
	return ok && n.Temp != ""
}

// chunkIn reads the name of a file of a chunk, of any deployment, that has its place in this
// directory. Others that end like it are not LMCache's.
func chunkIn(dir, name string) (gds.Name, bool) {
	n, ok := gds.ParseName(name)
	if !ok {
		return n, false
	}
	place, ok := n.Dir()
	return n, ok && place == dir
}

// Unfinished returns "": the side file says that a chunk is finished.
func (f *format) Unfinished(kv.Key) string { return "" }

// shapeOf returns the shape of a chunk as LMCache stores it by default: keys and values, layers,
// tokens, and elements of a token and layer.
func shapeOf(blockBytes, elementBytes int64, layers, tokens int) ([]int64, error) {
	rows := 2 * int64(layers) * int64(tokens) * elementBytes
	if rows <= 0 || blockBytes%rows != 0 {
		return nil, fmt.Errorf("kvstore: a block of %d bytes is no tensor of %d layers and %d tokens; set Config.Gds.Shape, and MemoryFormat for MLA",
			blockBytes, layers, tokens)
	}
	return []int64{2, int64(layers), int64(tokens), blockBytes / rows}, nil
}

// sumsDir is where the checksum logs are. Deployments whose files have different names have one
// each: their keys may be equal.
func (f *format) sumsDir() string {
	return fmt.Sprintf("%s-%016x", sums.DirName, blockhead.Sum([]byte(f.prefix+"\x00"+f.suffix)))
}
