// Package gds reads and writes the names and headers of the files of LMCache's GDS backend.
//
// A chunk has two files in a directory of two levels:
//
//	<root>/<d1>/<d2>/<key>.kvcache.safetensors            a header of 4096 bytes and the payload
//	<root>/<d1>/<d2>/<key>.kvcache.safetensors.metadata   the header again, written last
//
// Where the hash is a whole digest, d1 is b' or b", and d2 what follows: see DigestDir. <key> is
// LMCache's key with all but letters, digits and _.-~ percent-encoded. d1 and d2 are
// the first two characters of the decimal text of the chunk's hash and the next two. On
// WekaFS the first suffix is .weka1. A file has .tmp and eight more characters behind its name
// while it is written.
//
// The package does no I/O. What a key consists of, package lmcache knows.
package gds

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/big"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Suffixes of the names.
const (
	DataSuffix = ".kvcache.safetensors"
	WekaSuffix = ".weka1"
	SideSuffix = ".metadata"

	tempSuffix = ".tmp"
	tempDigits = 8
)

// Kind says which file of a chunk has a name.
type Kind int

// The kinds of files.
const (
	Data Kind = iota
	Side
)

// Name is the name of a file.
type Name struct {
	Key  string // as LMCache prints it: model@world@worker@hash@dtype
	Kind Kind
	Weka bool   // the data has WekaFS's suffix
	Temp string // of a temporary file the eight characters after .tmp, else empty
}

// String returns the name in its directory.
func (n Name) String() string {
	var b strings.Builder
	b.WriteString(Escape(n.Key))
	if n.Weka {
		b.WriteString(WekaSuffix)
	} else {
		b.WriteString(DataSuffix)
	}
	if n.Kind == Side {
		b.WriteString(SideSuffix)
	}
	if n.Temp != "" {
		b.WriteString(tempSuffix + n.Temp)
	}
	return b.String()
}

// ParseName reads the name of a file. It returns false for every name that String would not
// return.
func ParseName(name string) (Name, bool) {
	var n Name
	rest := name
	if at := len(rest) - len(tempSuffix) - tempDigits; at > 0 && strings.HasPrefix(rest[at:], tempSuffix) && isAlphanumeric(rest[at+len(tempSuffix):]) {
		rest, n.Temp = rest[:at], rest[at+len(tempSuffix):]
	}
	if cut, ok := strings.CutSuffix(rest, SideSuffix); ok {
		rest, n.Kind = cut, Side
	}
	cut, ok := strings.CutSuffix(rest, DataSuffix)
	if !ok {
		if cut, ok = strings.CutSuffix(rest, WekaSuffix); !ok {
			return Name{}, false
		}
		n.Weka = true
	}
	if n.Key, ok = unescape(cut); !ok || n.Key == "" {
		return Name{}, false
	}
	return n, true
}

func isAlphanumeric(s string) bool {
	for i := range len(s) {
		if c := s[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return false
		}
	}
	return true
}

const upperHex = "0123456789ABCDEF"

// Escape percent-encodes a key as Python's urllib.parse.quote does with no safe characters.
func Escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if isPlain(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&15])
	}
	return b.String()
}

// isPlain reports whether a character stays what it is.
func isPlain(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == '.' || c == '-' || c == '~'
}

// unescape is the inverse of Escape, and returns false for what Escape does not return.
func unescape(text string) (string, bool) {
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' {
			if i+2 >= len(text) {
				return "", false
			}
			high, low := strings.IndexByte(upperHex, text[i+1]), strings.IndexByte(upperHex, text[i+2])
			if c = byte(high<<4 | low); high < 0 || low < 0 || isPlain(c) {
				return "", false
			}
			i += 2
		} else if !isPlain(c) {
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), true
}

// mostHashDigits bounds a hash: SHA-256 has 64 hexadecimal digits.
const mostHashDigits = 64

// Dir returns the directory of a chunk below the root: two names with a slash between them, or
// one where the hash has no more than two characters. hash is as in the key: hexadecimal, with
// a sign where it is negative.
func Dir(hash string) (string, error) {
	dir, ok := appendDir(nil, hash)
	if !ok {
		return "", fmt.Errorf("%.80q is no hash of a chunk", hash)
	}
	return string(dir), nil
}

// appendDir appends Dir, and returns false for what is no hash.
func appendDir(b []byte, hash string) ([]byte, bool) {
	at := len(b)
	if n, err := strconv.ParseInt(hash, 16, 64); err == nil { // as most are
		if b = strconv.AppendInt(b, n, 16); string(b[at:]) != hash {
			return b, false
		}
		b = strconv.AppendInt(b[:at], n, 10)
	} else if n, err := strconv.ParseUint(hash, 16, 64); err == nil {
		if b = strconv.AppendUint(b, n, 16); string(b[at:]) != hash {
			return b, false
		}
		b = strconv.AppendUint(b[:at], n, 10)
	} else {
		n, ok := new(big.Int), len(strings.TrimPrefix(hash, "-")) <= mostHashDigits
		if ok {
			_, ok = n.SetString(hash, 16)
		}
		if !ok || n.Text(16) != hash {
			return b, false
		}
		b = n.Append(b, 10)
	}
	if len(b) <= at+2 {
		return b, true
	}
	b = b[:min(len(b), at+4)]
	return slices.Insert(b, at+2, '/'), true
}

// DigestBytes is the size of a hash that is a whole digest.
const DigestBytes = mostHashDigits / 2

// DigestDir is Dir for a hash that is bytes, as LMCache has it with some releases of vLLM: it
// cuts Python's text of the bytes, such as b'k\x9d', like that of a number. It returns false where
// the path that LMCache makes of the characters leaves the root.
func DigestDir(digest []byte) (string, bool) {
	text := pythonBytes(digest)
	if len(text) < 4 || text[2] == '/' {
		return "", false
	}
	return path.Join(text[:2], text[2:4]), true
}

// pythonBytes prints bytes as Python does.
func pythonBytes(raw []byte) string {
	quote := byte('\'')
	if bytes.IndexByte(raw, '\'') >= 0 && bytes.IndexByte(raw, '"') < 0 {
		quote = '"'
	}
	var b strings.Builder
	b.WriteByte('b')
	b.WriteByte(quote)
	for _, c := range raw {
		switch {
		case c == quote, c == '\\':
			b.WriteString("\\" + string(c))
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte(quote)
	return b.String()
}

// In reports whether LMCache has a chunk with this name in a directory below the root. It has none
// whose key is not model@world@worker@hash@dtype, perhaps with more behind it, or, in very old
// releases, with one more field in front, of which the oldest lack the type.
func (n Name) In(dir string) bool {
	var fields [5]string
	rest, more := n.Key, true
	for i := range fields {
		if !more {
			return false
		}
		fields[i], rest, more = strings.Cut(rest, "@")
	}
	for at := 3; at < len(fields); at++ {
		if !isNumber(fields[at-2]) || !isNumber(fields[at-1]) {
			continue
		}
		var room [48]byte
		if is, ok := appendDir(room[:0], fields[at]); ok && string(is) == dir {
			return true
		}
		if len(fields[at]) != mostHashDigits {
			continue
		}
		if raw, err := hex.DecodeString(fields[at]); err == nil && hex.EncodeToString(raw) == fields[at] {
			if is, ok := DigestDir(raw); ok && is == dir {
				return true
			}
		}
	}
	return false
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// IsDir reports whether a directory below the root may have chunks in it, or other such
// directories: one or two levels of one or two digits each, the first perhaps with a sign, or
// those of digests. LMCache's start-up scan looks only into those of two characters, so it loses
// the chunks whose hash has fewer than four.
func IsDir(dir string) bool {
	first, second, two := strings.Cut(dir, "/")
	if first == "b'" || first == `b"` {
		return !two || len(second) == 1 || len(second) == 2 && second[1] != '/'
	}
	return isLevel(first) && (!two || isLevel(second))
}

func isLevel(name string) bool {
	digits := strings.TrimPrefix(name, "-")
	return (len(name) == 1 || len(name) == 2) && digits != "" && strings.Trim(digits, "0123456789") == ""
}
