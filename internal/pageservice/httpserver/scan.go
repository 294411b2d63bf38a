package httpserver

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// What engines send is nearly always alike: an object of fields that we know, each
// of its type, in ASCII without escapes. That is quickly read by hand. For
// anything else, right or wrong, the scanner gives up and jsontext reads the body from
// its begin: there is one judge of what is unusual, and one place where errors are made.

// scanner is a position in a plain text, where a string ends at the next quote.
type scanner struct {
	text  string
	at    int
	names []string // of fields so far; reused
}

// isPlain tells whether all of a body is ASCII without controls or a backslash.
func isPlain(body []byte) bool {
	const (
		spaces   = 0x2020202020202020
		highBits = 0x8080808080808080
	)
	if bytes.IndexByte(body, '\\') >= 0 {
		return false
	}
	for ; len(body) >= 8; body = body[8:] {
		// While no byte is above 0x7f, one below the space borrows and shows a high bit.
		if eight := binary.LittleEndian.Uint64(body); (eight|(eight-spaces))&highBits != 0 {
			return false
		}
	}
	for _, c := range body {
		if c < ' ' || c > 0x7f {
			return false
		}
	}
	return true
}

// scan reads the body, if it is as usual; if not, fields may be left half read.
func (r *request) scan(f form) bool {
	if !isPlain(r.body) {
		return false
	}
	s := &r.scanner
	s.text, s.at, s.names = r.text, 0, s.names[:0]
	if !s.next('{') {
		return false
	}
	if !s.next('}') {
		if !r.scanField(f) {
			return false
		}
		for s.next(',') {
			if !r.scanField(f) {
				return false
			}
		}
		if !s.next('}') {
			return false
		}
	}
	s.skipSpaces()
	return s.at == len(s.text)
}

func (r *request) scanField(f form) bool {
	s := &r.scanner
	name, ok := s.string()
	if !ok || !s.next(':') || f[name].scan == nil || slices.Contains(s.names, name) {
		return false
	}
	s.names = append(s.names, name)
	return f[name].scan(r)
}

func scanRank(r *request) (ok bool) {
	r.rank.given = true
	r.rank.value, ok = r.scanner.integer()
	return ok
}

func scanPool(r *request) (ok bool) {
	pool, ok := r.scanner.string()
	r.pool = strings.Clone(pool)
	return ok
}

func scanKeys(r *request) bool { return scanList(r, &r.keys, r.scanKey) }

func scanPairs(r *request) bool {
	s := &r.scanner
	return scanList(r, &r.keys, func() (string, bool) {
		if !s.next('[') {
			return "", false
		}
		key, ok := r.scanKey()
		if !ok || !s.next(',') {
			return "", false
		}
		_, ok = s.string()
		return key, ok && s.next(']')
	})
}

func scanWritten(r *request) bool {
	s := &r.scanner
	return scanList(r, &r.written, func() (p pageservice.Placed, ok bool) {
		if !s.next('[') {
			return p, false
		}
		if p.Key, ok = r.scanKey(); !ok || !s.next(',') {
			return p, false
		}
		p.Page, ok = s.integer()
		return p, ok && s.next(']')
	})
}

func scanRelease(r *request) bool { return scanList(r, &r.release, r.scanner.integer) }

func scanList[T any](r *request, l *list[T], item func() (T, bool)) bool {
	s := &r.scanner
	if !s.next('[') {
		return false
	}
	l.given = true
	if s.next(']') {
		return true
	}
	for len(l.items) < r.limits.BatchKeys {
		v, ok := item()
		if !ok {
			return false
		}
		l.items = append(l.items, v)
		if !s.next(',') {
			return s.next(']')
		}
	}
	return false
}

func (r *request) scanKey() (string, bool) {
	key, ok := r.scanner.string()
	return key, ok && len(key) <= r.limits.KeyBytes
}

func (s *scanner) skipSpaces() {
	for s.at < len(s.text) && s.text[s.at] == ' ' {
		s.at++
	}
}

// next steps over a character, if it is the next one.
func (s *scanner) next(c byte) bool {
	s.skipSpaces()
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) string() (string, bool) {
	if !s.next('"') {
		return "", false
	}
	rest := s.text[s.at:]
	n := strings.IndexByte(rest, '"')
	if n < 0 {
		return "", false
	}
	s.at += n + 1
	return rest[:n], true
}

// integer reads one of so many digits that it cannot overflow.
func (s *scanner) integer() (v int64, ok bool) {
	s.skipSpaces()
	begin := s.at
	for s.at < len(s.text) && s.at-begin <= 18 {
		digit := s.text[s.at] - '0'
		if digit > 9 {
			break
		}
		v = v*10 + int64(digit)
		s.at++
	}
	digits := s.at - begin
	return v, digits == 1 || digits > 1 && digits <= 18 && s.text[begin] != '0'
}
