package kvcm

import (
	"math"
	"strconv"
	"strings"
)

// scheme is the kind of storage that a URI names.
const scheme = "hf3fs"

// URI is where the manager says that a block is.
type URI struct {
	Storage   string // the storage's unique name
	Path      string // of the file, absolute
	SizeBytes int64  // of the block
	Numbered  bool   // the URI has a blkid: files of this storage may have several blocks
	Block     int64  // the block's number in its file
}

// Offset returns where the block begins in its file.
func (u URI) Offset() int64 { return u.Block * u.SizeBytes }

// String returns the URI as the manager writes it.
func (u URI) String() string {
	s := scheme + "://" + u.Storage + u.Path + "?"
	if u.Numbered {
		s += "blkid=" + strconv.FormatInt(u.Block, 10) + "&"
	}
	return s + "size=" + strconv.FormatInt(u.SizeBytes, 10)
}

// ParseURI reads a URI, and reports whether it names a block on a 3FS. Other parameters
// are ignored, as the SDK does. Unlike the SDK, which then writes to the beginning of the
// file, it refuses a size or a number that is none.
func ParseURI(s string) (URI, bool) {
	rest, ok := strings.CutPrefix(s, scheme+"://")
	if !ok {
		return URI{}, false
	}
	where, query, _ := strings.Cut(rest, "?")
	slash := strings.IndexByte(where, '/')
	if slash < 0 || where[slash:] == "/" {
		return URI{}, false
	}
	u := URI{Storage: where[:slash], Path: where[slash:]}
	for _, parameter := range strings.Split(query, "&") {
		key, value, _ := strings.Cut(parameter, "=")
		var to *int64
		switch key {
		case "size":
			to = &u.SizeBytes
		case "blkid":
			to = &u.Block
			u.Numbered = true
		default:
			continue
		}
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || strconv.FormatUint(n, 10) != value {
			return URI{}, false
		}
		*to = int64(n)
	}
	return u, u.SizeBytes > 0 && u.Block < math.MaxInt64/u.SizeBytes
}
