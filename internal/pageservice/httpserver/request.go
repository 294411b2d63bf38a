package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// request is what a body says. It is reused: nothing of it outlives the request
// but what was copied out of it.
type request struct {
	limits *Limits
	body   []byte
	text   string // body; keys without escapes are parts of it
	src    bytes.Buffer
	dec    jsontext.Decoder

	scanner scanner

	rank, numPages number
	role, pool     string
	keys           list[string]
	written        list[pageservice.Placed]
	release        list[int64]
	wrong          error // the first value of a wrong type
}

// number is an integer field.
type number struct {
	given bool // and not null
	value int64
}

// list is a field that holds a list. Its storage is reused.
type list[T any] struct {
	given  bool
	isList bool // true also when it is not given
	items  []T
}

func (l *list[T]) reset() {
	clear(l.items) // keys would keep the last body
	l.given, l.isList, l.items = false, true, l.items[:0]
}

// errMalformed: the body is not what the protocol knows. The references answer 500.
var errMalformed = errors.New("malformed body")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

func (r *request) reset() {
	r.body, r.text = r.body[:0], ""
	clear(r.scanner.names)
	r.scanner.text = ""
	r.forget()
}

// forget empties the fields.
func (r *request) forget() {
	r.rank, r.numPages = number{}, number{}
	r.role, r.pool = "worker", "kv"
	r.keys.reset()
	r.written.reset()
	r.release.reset()
	r.wrong = nil
}

// read takes the body in. The buffer grows with what arrives, not with what the
// head promises.
func (r *request) read(w http.ResponseWriter, hr *http.Request) error {
	r.reset()
	tooLarge := refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", r.limits.BodyBytes)}
	if hr.ContentLength > r.limits.BodyBytes {
		return tooLarge
	}
	from := http.MaxBytesReader(w, hr.Body, r.limits.BodyBytes)
	for {
		if len(r.body) == cap(r.body) {
			r.body = append(r.body, make([]byte, max(len(r.body), 4096))...)[:len(r.body)]
		}
		n, err := from.Read(r.body[len(r.body):cap(r.body)])
		r.body = r.body[:len(r.body)+n]
		switch tooMany := (*http.MaxBytesError)(nil); {
		case err == nil:
		case err == io.EOF:
			return nil
		case errors.As(err, &tooMany):
			return tooLarge
		case errors.Is(err, os.ErrDeadlineExceeded):
			return refusal{http.StatusRequestTimeout, "the body did not come in time"}
		default:
			return refusal{http.StatusBadRequest, "the body ended early"}
		}
	}
}

// parse understands the body, which is one JSON object.
func (r *request) parse(f form) error {
	r.text = string(r.body)
	if r.scan(f) {
		return nil
	}
	r.forget()
	return r.parseUnusual(f)
}

func (r *request) parseUnusual(f form) error {
	r.src = *bytes.NewBuffer(r.body)
	r.dec.Reset(&r.src)
	if r.dec.PeekKind() != '{' {
		if _, err := r.dec.ReadValue(); err != nil {
			return malformed("%v", err)
		}
		return malformed("it is not a JSON object")
	}
	if err := r.object(f); err != nil {
		var syntax *jsontext.SyntacticError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) {
			return malformed("%v", err)
		}
		return err
	}
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return malformed("there is something after the JSON object")
	}
	return nil
}

func (r *request) object(f form) error {
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for r.dec.PeekKind() == '"' {
		name, err := r.string()
		if err != nil {
			return err
		}
		read := f[name].read
		if read == nil {
			read = (*request).skip
		}
		if err := read(r); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r *request) skip() error { return r.dec.SkipValue() }

// object-field readers, for forms

func readRank(r *request) error     { return r.integer("rank", &r.rank) }
func readNumPages(r *request) error { return r.integer("num_pages", &r.numPages) }

// readRole reads a role. One that is no string is none that we know.
func readRole(r *request) error {
	if r.dec.PeekKind() != '"' {
		r.role = ""
		return r.skip()
	}
	s, err := r.string()
	r.role = strings.Clone(s)
	return err
}

// readPool reads SGLang's namespace, an opaque name of a pool.
func readPool(r *request) error {
	if r.dec.PeekKind() != '"' {
		return r.mismatch("namespace is not a string")
	}
	s, err := r.string()
	r.pool = strings.Clone(s)
	return err
}

func readKeys(r *request) error {
	return readList(r, &r.keys, func() (string, error) { return r.key("keys") })
}

// readPairs reads [key, prefix key] and leaves the prefix out: nobody uses it.
func readPairs(r *request) error {
	return readList(r, &r.keys, func() (key string, err error) {
		err = r.pair("keys", func() error { key, err = r.key("keys"); return err }, r.skip)
		return key, err
	})
}

// readWritten reads [key, page].
func readWritten(r *request) error {
	return readList(r, &r.written, func() (p pageservice.Placed, err error) {
		var page number
		err = r.pair("what was written",
			func() error { p.Key, err = r.key("what was written"); return err },
			func() error { return r.page(&page) })
		p.Page = page.value
		return p, err
	})
}

func readRelease(r *request) error {
	if r.dec.PeekKind() == 'n' { // as none
		return r.skip()
	}
	return readList(r, &r.release, func() (int64, error) {
		var page number
		err := r.page(&page)
		return page.value, err
	})
}

// readList reads a list item by item. A value that is no list is noted in the list,
// and an item of a wrong type in the request; both are read over, so that what is
// no JSON is found first.
func readList[T any](r *request, l *list[T], item func() (T, error)) error {
	l.given = true
	if r.dec.PeekKind() != '[' {
		l.isList = false
		return r.skip()
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	depth := r.dec.StackDepth()
	for {
		if r.dec.PeekKind() == ']' {
			_, err := r.dec.ReadToken()
			return err
		}
		if len(l.items) == r.limits.BatchKeys {
			return refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d items in one request", r.limits.BatchKeys)}
		}
		v, err := item()
		if err != nil {
			return err
		}
		if err := r.leave(depth); err != nil {
			return err
		}
		l.items = append(l.items, v)
	}
}

// leave reads over what is left of an item of a wrong type.
func (r *request) leave(depth int) error {
	for r.dec.StackDepth() > depth {
		var err error
		switch r.dec.PeekKind() {
		case ']', '}':
			_, err = r.dec.ReadToken()
		default:
			err = r.dec.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pair reads a list of exactly two.
func (r *request) pair(what string, first, second func() error) error {
	if r.dec.PeekKind() != '[' {
		return r.mismatch(what + ": an item is not a pair")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for _, read := range []func() error{first, second} {
		if r.dec.PeekKind() == ']' {
			break
		}
		if err := read(); err != nil {
			return err
		}
	}
	if _, n := r.dec.StackIndex(r.dec.StackDepth()); n != 2 || r.dec.PeekKind() != ']' {
		r.note(what + ": an item is not a pair")
		return nil // left by leave
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r *request) key(what string) (string, error) {
	if r.dec.PeekKind() != '"' {
		return "", r.mismatch(what + ": a key is not a string")
	}
	key, err := r.string()
	if err == nil && len(key) > r.limits.KeyBytes {
		err = refusal{http.StatusBadRequest, fmt.Sprintf("a key of %d bytes; at most %d", len(key), r.limits.KeyBytes)}
	}
	return key, err
}

func (r *request) page(n *number) error { return r.integer("a page", n) }

// integer reads a number that must be written as an integer: neither 1.0 nor 1e3.
func (r *request) integer(what string, n *number) error {
	switch r.dec.PeekKind() {
	case 'n':
		*n = number{}
		if what != "rank" {
			return r.mismatch(what + " is null")
		}
		return r.skip()
	case '0':
	default:
		n.given = true
		return r.mismatch(what + " is not an integer")
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		return err
	}
	end := int(r.dec.InputOffset())
	n.given = true
	if n.value, err = strconv.ParseInt(r.text[end-len(v):end], 10, 64); err != nil {
		r.note(what + " is not an integer of 64 bits")
	}
	return nil
}

// string reads a string, as a part of the text if it can be.
func (r *request) string() (string, error) {
	v, err := r.dec.ReadValue()
	if err != nil {
		return "", err
	}
	end := int(r.dec.InputOffset())
	if bytes.IndexByte(v, '\\') < 0 {
		return r.text[end-len(v)+1 : end-1], nil
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err
}

// mismatch notes a value of a wrong type and reads over it.
func (r *request) mismatch(what string) error {
	r.note(what)
	return r.skip()
}

func (r *request) note(what string) {
	if r.wrong == nil {
		r.wrong = malformed("%s", what)
	}
}
