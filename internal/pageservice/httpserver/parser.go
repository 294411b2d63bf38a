package httpserver

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// parser reads the tokens of one JSON text (RFC 8259), and nothing that two readers
// could understand in two ways: it refuses invalid UTF-8, half surrogate pairs, and
// names that occur twice in an object. It is written by hand because encoding/json
// accepts all of these and takes about ten times as long for the bodies that engines
// send: see BenchmarkParse. Its memory is bounded by the length of the text.
//
// Strings without escapes are parts of the text. All errors are errMalformed, except
// those of callers' functions.
type parser struct {
	text  string
	at    int
	plain bool // see isPlain

	levels []level               // the objects and lists around the position; reused
	names  []string              // read so far in the objects among them; reused
	sets   []map[string]struct{} // empty ones, for reuse
}

// level is an object or a list that has begun and not ended.
type level struct {
	isObject bool
	first    int                 // names[first] is its first name
	set      map[string]struct{} // its names, where they are too many to go through
}

const (
	// maxDepth bounds how deeply objects and lists nest.
	maxDepth = 10000
	// maxNames bounds the names of all objects around a position: each takes many times
	// what it takes in the text.
	maxNames = 1 << 16
	// fewNames of an object are compared one by one.
	fewNames = 64
	// keepNames and keepSets bound the sets of names that are kept for reuse.
	keepNames, keepSets = 1 << 10, 16
)

// isPlain reports whether a text is ASCII without control characters or backslashes:
// then a string ends at the next quote. Engines send hardly anything else.
func isPlain(text string) bool {
	const (
		spaces   = 0x2020202020202020
		highBits = 0x8080808080808080
	)
	if strings.IndexByte(text, '\\') >= 0 {
		return false
	}
	var eight [8]byte
	for ; len(text) >= 8; text = text[8:] {
		copy(eight[:], text)
		// While no byte is above 0x7f, one below the space borrows and shows a high bit.
		if v := binary.LittleEndian.Uint64(eight[:]); (v|(v-spaces))&highBits != 0 {
			return false
		}
	}
	for _, c := range []byte(text) {
		if c < ' ' || c > 0x7f {
			return false
		}
	}
	return true
}

// reset forgets the text.
func (p *parser) reset() {
	clear(p.names[:cap(p.names)]) // they would keep the text in memory
	clear(p.levels[:cap(p.levels)])
	*p = parser{levels: p.levels[:0], names: p.names[:0], sets: p.sets}
}

// start begins with a text.
func (p *parser) start(text string, plain bool) error {
	p.text, p.at, p.plain = text, 0, plain
	p.levels, p.names = p.levels[:0], p.names[:0]
	if !plain && !utf8.ValidString(text) {
		return malformed("invalid UTF-8")
	}
	return nil
}

// fail returns the error that something else was expected at the position.
func (p *parser) fail(want string) error {
	got := "the end"
	if p.at < len(p.text) {
		c, _ := utf8.DecodeRuneInString(p.text[p.at:])
		got = fmt.Sprintf("%q", c)
	}
	return malformed("byte %d: %s, want %s", p.at, got, want)
}

// peek skips white space and returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	for ; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; c {
		case ' ', '\n', '\r', '\t':
		default:
			return c
		}
	}
	return 0
}

// take steps over a byte, if it comes next.
func (p *parser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

// open begins an object or a list.
func (p *parser) open(bracket byte) error {
	if !p.take(bracket) {
		return p.fail(string(rune(bracket)))
	}
	if len(p.levels) == maxDepth {
		return malformed("byte %d: objects and lists nest more than %d deep", p.at, maxDepth)
	}
	p.levels = append(p.levels, level{isObject: bracket == '{', first: len(p.names)})
	return nil
}

// close ends the innermost object or list, if it ends here.
func (p *parser) close() bool {
	last := len(p.levels) - 1
	bracket := byte(']')
	if p.levels[last].isObject {
		bracket = '}'
	}
	if !p.take(bracket) {
		return false
	}
	p.names = p.names[:p.levels[last].first]
	if set := p.levels[last].set; set != nil {
		p.levels[last].set = nil
		if len(set) <= keepNames && len(p.sets) < keepSets {
			clear(set)
			p.sets = append(p.sets, set)
		}
	}
	p.levels = p.levels[:last]
	return true
}

// object reads an object. It calls member with each name, to read the value.
func (p *parser) object(member func(name string) error) error {
	if err := p.open('{'); err != nil {
		return err
	}
	if p.close() {
		return nil
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
		if p.close() {
			return nil
		}
		if !p.take(',') {
			return p.fail("',' or '}'")
		}
	}
}

// list reads a list. It calls item to read each of its values.
func (p *parser) list(item func() error) error {
	if err := p.open('['); err != nil {
		return err
	}
	if p.close() {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if p.close() {
			return nil
		}
		if !p.take(',') {
			return p.fail("',' or ']'")
		}
	}
}

// name reads the name of a member and the colon after it.
func (p *parser) name() (string, error) {
	name, err := p.string()
	if err != nil {
		return "", err
	}
	if len(p.names) == maxNames {
		return "", malformed("byte %d: objects have more than %d names", p.at, maxNames)
	}
	l := &p.levels[len(p.levels)-1]
	known := p.names[l.first:]
	again := false
	if l.set != nil {
		_, again = l.set[name]
	} else {
		again = slices.Contains(known, name)
	}
	if again {
		return "", malformed("byte %d: the name %.64q occurs twice in an object", p.at, name)
	}
	p.names = append(p.names, name)
	switch {
	case l.set != nil:
		l.set[name] = struct{}{}
	case len(known) == fewNames:
		l.set = p.newSet()
		l.set[name] = struct{}{}
		for _, k := range known {
			l.set[k] = struct{}{}
		}
	}
	if !p.take(':') {
		return "", p.fail("':'")
	}
	return name, nil
}

// newSet returns an empty set of names.
func (p *parser) newSet() map[string]struct{} {
	last := len(p.sets) - 1
	if last < 0 {
		return map[string]struct{}{}
	}
	set := p.sets[last]
	p.sets = p.sets[:last]
	return set
}

// skip skips a value of any type. It does not recurse, so that a deep value costs
// no stack.
func (p *parser) skip() error {
	for outer := len(p.levels); ; {
		switch c := p.peek(); c {
		case '{', '[':
			if err := p.open(c); err != nil {
				return err
			}
			if !p.close() {
				if err := p.nameInObject(); err != nil {
					return err
				}
				continue // with the first value in it
			}
		default:
			if err := p.scalar(); err != nil {
				return err
			}
		}
		for len(p.levels) > outer && p.close() {
		}
		if len(p.levels) == outer {
			return nil
		}
		if !p.take(',') {
			return p.fail("',' or an end")
		}
		if err := p.nameInObject(); err != nil {
			return err
		}
	}
}

// nameInObject reads a name where the innermost level is an object.
func (p *parser) nameInObject() (err error) {
	if p.levels[len(p.levels)-1].isObject {
		_, err = p.name()
	}
	return err
}

// scalar skips a string, a number or a literal.
func (p *parser) scalar() (err error) {
	switch c := p.peek(); {
	case c == '"':
		_, err = p.readString(false)
		return err
	case isNumber(c):
		_, err = p.number()
		return err
	}
	for _, literal := range []string{"null", "true", "false"} {
		if strings.HasPrefix(p.text[p.at:], literal) {
			p.at += len(literal)
			return nil
		}
	}
	return p.fail("a value")
}

// isNumber reports whether a number begins with c.
func isNumber(c byte) bool { return c == '-' || c >= '0' && c <= '9' }

// number reads a number and returns its spelling.
func (p *parser) number() (string, error) {
	begin := p.at
	p.sign("-")
	zero := p.at < len(p.text) && p.text[p.at] == '0'
	if n := p.digits(); n == 0 || zero && n > 1 {
		return "", p.fail("a number without leading zeros")
	}
	if p.at < len(p.text) && p.text[p.at] == '.' {
		p.at++
		if p.digits() == 0 {
			return "", p.fail("a digit")
		}
	}
	if p.at < len(p.text) && p.text[p.at]|0x20 == 'e' {
		p.at++
		p.sign("+-")
		if p.digits() == 0 {
			return "", p.fail("a digit")
		}
	}
	return p.text[begin:p.at], nil
}

func (p *parser) sign(signs string) {
	if p.at < len(p.text) && strings.IndexByte(signs, p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) digits() int {
	begin := p.at
	for p.at < len(p.text) && p.text[p.at]-'0' <= 9 {
		p.at++
	}
	return p.at - begin
}

// string reads a string, as a part of the text if it has no escapes.
func (p *parser) string() (string, error) { return p.readString(true) }

// readString reads a string. If keep is false and the string has escapes, it only checks
// them and returns "".
func (p *parser) readString(keep bool) (string, error) {
	if !p.take('"') {
		return "", p.fail("a string")
	}
	begin := p.at
	n := strings.IndexByte(p.text[begin:], '"')
	if n < 0 {
		p.at = len(p.text)
		return "", p.fail(`'"'`)
	}
	s := p.text[begin : begin+n]
	if !p.plain {
		for i := range len(s) {
			if s[i] < ' ' || s[i] == '\\' {
				return p.escaped(i, n, keep)
			}
		}
	}
	p.at += n + 1
	return s, nil
}

// escaped reads a string with escapes. Its first n bytes have none, and it has at least
// least bytes.
func (p *parser) escaped(n, least int, keep bool) (string, error) {
	var b []byte
	if keep {
		b = append(make([]byte, 0, least), p.text[p.at:p.at+n]...)
	}
	for p.at += n; p.at < len(p.text); {
		c := p.text[p.at]
		switch {
		case c == '"':
			p.at++
			return string(b), nil
		case c < ' ':
			return "", p.fail("no control character in a string")
		case c == '\\':
			r, ok := p.escape()
			if !ok {
				return "", p.fail("a valid escape")
			}
			if keep {
				b = utf8.AppendRune(b, r)
			}
		default:
			if keep {
				b = append(b, c)
			}
			p.at++
		}
	}
	return "", p.fail(`'"'`)
}

// escape reads an escape: two characters, \uXXXX, or a pair of those for a character
// beyond 16 bits.
func (p *parser) escape() (r rune, ok bool) {
	if p.at+1 >= len(p.text) {
		return 0, false
	}
	c := p.text[p.at+1]
	if c == 'u' {
		if r, ok = p.hex(); !ok || !utf16.IsSurrogate(r) {
			return r, ok
		}
		low, ok := p.hex()
		r = utf16.DecodeRune(r, low)
		return r, ok && r != utf8.RuneError
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		return 0, false
	}
	p.at += 2
	return rune("\"\\/\b\f\n\r\t"[i]), true
}

// hex reads \uXXXX.
func (p *parser) hex() (r rune, ok bool) {
	if len(p.text)-p.at < 6 || p.text[p.at:p.at+2] != `\u` {
		return 0, false
	}
	v, err := strconv.ParseUint(p.text[p.at+2:p.at+6], 16, 16)
	if err != nil {
		return 0, false
	}
	p.at += 6
	return rune(v), true
}
