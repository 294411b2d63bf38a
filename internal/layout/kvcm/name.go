package kvcm

import (
	"strconv"
	"strings"
)

// hashSeed is what the hash of several keys begins with.
const hashSeed = 42

// Name returns the name of the file that has the blocks with these keys, at least one, of
// an instance and a spec.
func Name(instance, spec string, keys ...int64) string {
	f := FileName{First: keys[0], Many: len(keys) > 1}
	if !f.Many {
		return f.String()
	}
	prefix := instance + "/" + spec + "/"
	joined := make([]byte, 0, len(keys)*(len(prefix)+17))
	for i, key := range keys {
		if i > 0 {
			joined = append(joined, '|')
		}
		joined = append(joined, prefix...)
		joined = strconv.AppendUint(joined, uint64(key), 16)
	}
	f.Hash = hash64(joined, hashSeed)
	return f.String()
}

// FileName is a file's name taken apart.
type FileName struct {
	First int64  // the key of its first block
	Many  bool   // it has several blocks
	Hash  uint64 // of all their keys, where it has several
}

// String returns the name.
func (f FileName) String() string {
	if !f.Many {
		return hex(uint64(f.First))
	}
	return hex(uint64(f.First)) + "_" + hex(f.Hash)
}

// ParseName reads a name that Name returns, and reports whether it is one.
func ParseName(name string) (FileName, bool) {
	first, rest, many := strings.Cut(name, "_")
	f := FileName{Many: many}
	n, ok := parseHex(first)
	f.First = int64(n)
	if many {
		var isHash bool
		f.Hash, isHash = parseHex(rest)
		ok = ok && isHash
	}
	return f, ok
}

// File is a file below the root directory.
type File struct {
	Instance, Spec string
	FileName
}

// Parse reads the path of a file below the root directory, and reports whether it is one
// of KVCM's.
func Parse(p string) (File, bool) {
	parts := strings.Split(p, "/")
	if len(parts) != 3 || !IsDir(parts[0]) || !IsDir(parts[1]) {
		return File{}, false
	}
	name, ok := ParseName(parts[2])
	return File{parts[0], parts[1], name}, ok
}

// IsDir reports whether an instance or a spec of this name has a directory of its own.
func IsDir(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

func hex(n uint64) string { return strconv.FormatUint(n, 16) }

func parseHex(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 16, 64)
	return n, err == nil && (s == "0" || s[0] != '0') && strings.ToLower(s) == s
}
