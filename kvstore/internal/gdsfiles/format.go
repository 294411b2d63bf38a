package gdsfiles

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
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

	ids         IDs  // nil: no keys are whole digests
	numbersOnly bool // digests are numbers where blocks are written
}

var (
	_ blockfiles.Paired      = (*format)(nil)
	_ blockfiles.Generations = (*format)(nil)
)

// IDs translates between keys and LMCache's ids of chunks that are whole digests.
type IDs interface {
	// ID returns the id of a key, and whether it is known.
	ID(kv.Key) (keys.ID, bool)
	// Key returns the key of an id.
	Key(keys.ID) kv.Key
}

// LMCache's numbers of memory formats.
const (
	format2LTD = 1 // keys and values, layers, tokens, elements
	formatT2D  = 2 // tokens, keys and values, elements: of one layer
)

// mostNameBytes is the longest name that Linux's file systems take.
const mostNameBytes = 255

func newFormat(o Options, weka bool) (*format, error) {
	n := lmcache.Name{
		Model: o.Model, WorldSize: o.WorldSize, WorkerID: o.WorkerID, DType: o.DType, Layer: lmcache.NoLayer, Tags: o.Tags,
		OldSlashes: true, // slashes are escaped, so nothing looks like one
	}
	if o.Layer != nil {
		n.Layer = *o.Layer
		if n.Layer < 0 {
			return nil, fmt.Errorf("kvstore: layer %d: count from 0", n.Layer)
		}
	}
	if err := n.Check(); err != nil {
		return nil, fmt.Errorf("kvstore: %w", err)
	}
	f := &format{weka: weka, dir: o.GPU % len(o.Dirs), ids: o.IDs, numbersOnly: o.DigestNumbers}
	f.prefix, f.suffix = n.KeyAffixes()
	var err error
	if f.header, err = o.header(); err != nil {
		return nil, err
	}
	if f.head, err = f.header.Encode(); err != nil {
		return nil, fmt.Errorf("kvstore: the shape %v of a chunk of %d bytes: %w", f.header.Shape, o.Layout.BlockBytes, err)
	}
	longest := f.place("", strings.Repeat("f", f.mostHashDigits()))
	if len(longest.Side)+len(".tmp12345678") > mostNameBytes {
		return nil, fmt.Errorf("kvstore: the name of the model is too long for a file's: %s has %d bytes", longest.Side, len(longest.Side))
	}
	return f, nil
}

// header returns the header of all chunks.
func (o *Options) header() (gds.Header, error) {
	h := gds.Header{Shape: o.Shape, Bytes: o.Layout.BlockBytes, Format: o.MemoryFormat}
	if len(o.Groups) > 0 {
		if o.Shape != nil {
			return h, errors.New("kvstore: a chunk has a Shape, or Tensors with one each; leave one of the two out")
		}
		h.DType, h.Shape = o.Groups[0].DType, o.Groups[0].Shape
		if len(o.Groups) > 1 {
			h.Groups = o.Groups
		}
		return h, nil
	}
	var ok bool
	if h.DType, ok = gds.DTypeOf(o.DType); !ok {
		return h, fmt.Errorf("kvstore: LMCache's GDS backend has no word for the element type %.40q", o.DType)
	}
	if h.Shape != nil {
		return h, nil
	}
	size, err := gds.Group{DType: h.DType}.Size()
	if err != nil {
		return h, err
	}
	layers, format := o.Layers, format2LTD
	if o.Layer != nil {
		layers, format = 1, formatT2D
	}
	if h.Shape, err = shapeOf(o.Layout.BlockBytes, size, layers, o.Tokens); err != nil {
		return h, err
	}
	if o.Layer != nil { // tokens, keys and values, elements
		h.Shape = []int64{h.Shape[2], h.Shape[0], h.Shape[3]}
	}
	h.Format = cmp.Or(h.Format, format)
	return h, nil
}

func (f *format) mostHashDigits() int {
	if f.ids != nil {
		return 2 * gds.DigestBytes
	}
	return len(ownTag) + 2*len(kv.Key{})
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

// Place returns where LMCache has the chunk. Without IDs every key has a place.
func (f *format) Place(key kv.Key) (blockfiles.Place, error) {
	all, err := f.Places(key)
	if err != nil {
		return blockfiles.Place{}, err
	}
	return all[0], nil
}

// numberDigits is how many digits the hash of a number of 64 bits has at most.
const numberDigits = 16

var errNoID = errors.New("the id that LMCache gives it is not known: add the block to IDs first, and let that remember more blocks if it was added")

// Places returns where LMCache has the chunk. With some releases of vLLM whole digests are
// bytes, with older ones they are numbers.
func (f *format) Places(key kv.Key) ([]blockfiles.Place, error) {
	_, signed := key.Int64()
	_, unsigned := key.Uint64()
	if f.ids == nil || signed || unsigned {
		hash := hashOf(key)
		dir, err := gds.Dir(hash)
		return []blockfiles.Place{f.place(dir, hash)}, err
	}
	id, ok := f.ids.ID(key)
	if !ok {
		return nil, errNoID
	}
	if len(id.Bytes()) != gds.DigestBytes {
		return nil, fmt.Errorf("its id has %d bytes, and LMCache's whole digests have %d", len(id.Bytes()), gds.DigestBytes)
	}
	digits := hex.EncodeToString(id.Bytes())
	var all []blockfiles.Place
	if number := strings.TrimLeft(digits, "0"); len(number) > numberDigits { // else it is the place of another key, the number
		dir, err := gds.Dir(number)
		if err != nil {
			return nil, err
		}
		all = append(all, f.place(dir, number))
	}
	if dir, ok := gds.DigestDir(id.Bytes()); ok { // else no LMCache finds the chunk, and the store does
		all = append(all, f.place(dir, digits))
		if !f.numbersOnly {
			slices.Reverse(all)
		}
	}
	return all, nil
}

// place returns the place of a chunk with a hash.
func (f *format) place(dir, hash string) blockfiles.Place {
	name := gds.Name{Key: f.prefix + hash + f.suffix, Weka: f.weka}
	side := name
	side.Kind = gds.Side
	return blockfiles.Place{
		Dir: dir, Name: name.String(), Side: side.String(),
		Offset: gds.HeaderBytes, Bytes: f.header.FileBytes(),
	}
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
	if digits := strings.TrimPrefix(hash, "-"); f.ids == nil || len(digits) <= numberDigits {
		return keyOf(hash)
	}
	raw, err := hex.DecodeString(strings.Repeat("0", max(0, 2*gds.DigestBytes-len(hash))) + hash)
	id, ok := keys.DigestID(raw)
	if err != nil || !ok {
		return kv.Key{}, false
	}
	return f.ids.Key(id), true
}

// HasBlocks reports whether a directory is one of the two levels, also of a short hash.
func (f *format) HasBlocks(dir string) bool { return gds.IsDir(dir) }

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
	switch {
	case h.DType != f.header.DType || h.Format != f.header.Format || !slices.Equal(h.Shape, f.header.Shape):
		return fmt.Errorf("its header describes %s %v in format %d, not %s %v in format %d",
			h.DType, h.Shape, h.Format, f.header.DType, f.header.Shape, f.header.Format)
	case !slices.EqualFunc(groupsOf(h), groupsOf(f.header), func(a, b gds.Group) bool { return a.DType == b.DType && slices.Equal(a.Shape, b.Shape) }):
		return fmt.Errorf("its header describes the tensors %v, not %v", groupsOf(h), groupsOf(f.header))
	}
	return nil
}

// groupsOf returns the tensors of a payload. One of a single tensor may have no groups.
func groupsOf(h gds.Header) []gds.Group {
	if len(h.Groups) > 0 {
		return h.Groups
	}
	return []gds.Group{{DType: h.DType, Shape: h.Shape}}
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
	return n, n.In(dir)
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
