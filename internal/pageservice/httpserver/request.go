package httpserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// request holds what a body says. It is reused: nothing of it outlives the request
// except what was copied.
type request struct {
	limits *Limits
	body   []byte
	parser parser

	rank, numPages number
	role, pool     string
	keys           list[string]
	written        list[pageservice.Placed]
	release        list[int64]
	wrong          error // the first value of a wrong type
}

// number is an integer field.
type number struct {
	given bool // and is not null
	value int64
}

// list is a field that is a list. Its storage is reused.
type list[T any] struct {
	given  bool
	isList bool // also where it is not given
	items  []T
}

func (l *list[T]) reset() {
	clear(l.items) // keys would keep the last body in memory
	l.given, l.isList, l.items = false, true, l.items[:0]
}

// errMalformed: the body is not of the protocol. The reference servers answer 500.
var errMalformed = errors.New("malformed body")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

func (r *request) reset() {
	r.body = r.body[:0]
	r.parser.reset()
	r.rank, r.numPages = number{}, number{}
	r.role, r.pool = "worker", "kv"
	r.keys.reset()
	r.written.reset()
	r.release.reset()
	r.wrong = nil
}

// read reads the body. The buffer grows with what arrives, not with what the head
// announces.
func (r *request) read(w http.ResponseWriter, hr *http.Request, p pace) error {
	r.reset()
	conn := http.NewResponseController(w)
	tooLarge := refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", r.limits.BodyBytes)}
	if hr.ContentLength > r.limits.BodyBytes {
		return tooLarge
	}
	from := http.MaxBytesReader(w, hr.Body, r.limits.BodyBytes)
	for {
		if len(r.body) == cap(r.body) {
			r.body = append(r.body, make([]byte, max(len(r.body), 4096))...)[:len(r.body)]
		}
		if err := p.expect(conn, len(r.body)); err != nil {
			return err
		}
		n, err := from.Read(r.body[len(r.body):cap(r.body)])
		r.body = r.body[:len(r.body)+n]
		switch tooMany := (*http.MaxBytesError)(nil); {
		case err == nil:
		case err == io.EOF:
			return p.end(conn)
		case errors.As(err, &tooMany):
			return tooLarge
		case errors.Is(err, os.ErrDeadlineExceeded):
			return refusal{http.StatusRequestTimeout, "the body did not arrive in time"}
		default:
			return refusal{http.StatusBadRequest, "the body ended early"}
		}
	}
}

// parse parses the body, which is one JSON object.
func (r *request) parse(f form) error {
	text := string(r.body) // keys without escapes are parts of it
	return r.parseText(f, text, isPlain(text))
}

// parseText parses a text. If plain is false although the text is plain, the result is
// the same but takes longer.
func (r *request) parseText(f form, text string, plain bool) error {
	p := &r.parser
	if err := p.start(text, plain); err != nil {
		return err
	}
	if p.peek() != '{' {
		if err := p.skip(); err != nil {
			return err
		}
		return malformed("it is not a JSON object")
	}
	err := p.object(func(name string) error {
		if read := f[name]; read != nil {
			return read(r)
		}
		return p.skip()
	})
	if err != nil {
		return err
	}
	p.peek()
	if p.at < len(p.text) {
		return malformed("byte %d: there is something after the JSON object", p.at)
	}
	return nil
}

// form maps the fields that a body may have to their readers. Other fields are skipped.
type form map[string]func(*request) error

func readRank(r *request) error     { return r.integer("rank", &r.rank) }
func readNumPages(r *request) error { return r.integer("num_pages", &r.numPages) }

// readRole reads a role. A role that is not a string is unknown.
func readRole(r *request) error {
	if r.parser.peek() != '"' {
		r.role = ""
		return r.parser.skip()
	}
	s, err := r.parser.string()
	r.role = strings.Clone(s)
	return err
}

// readPool reads SGLang's namespace, an opaque name of a pool.
func readPool(r *request) error {
	if r.parser.peek() != '"' {
		return r.mismatch("namespace is not a string")
	}
	s, err := r.parser.string()
	r.pool = strings.Clone(s)
	return err
}

func readKeys(r *request) error {
	return readList(r, &r.keys, func(key *string) error { return r.key("keys", key) })
}

// readPairs reads [key, prefix key] and drops the prefix key, which is not used.
func readPairs(r *request) error {
	return readList(r, &r.keys, func(key *string) error {
		return r.pair("keys", func() error { return r.key("keys", key) }, r.parser.skip)
	})
}

// readWritten reads [key, page].
func readWritten(r *request) error {
	const what = "what was written"
	return readList(r, &r.written, func(p *pageservice.Placed) error {
		return r.pair(what, func() error { return r.key(what, &p.Key) }, func() error { return r.page(&p.Page) })
	})
}

func readRelease(r *request) error {
	if r.parser.peek() == 'n' { // null is an empty list
		return r.parser.skip()
	}
	return readList(r, &r.release, r.page)
}

// readList reads a list item by item. A value that is not a list is noted in the list,
// and an item of a wrong type in the request. Both are skipped, so that what is not
// JSON is found first.
func readList[T any](r *request, l *list[T], item func(*T) error) error {
	l.given = true
	if r.parser.peek() != '[' {
		l.isList = false
		return r.parser.skip()
	}
	return r.parser.list(func() error {
		if len(l.items) == r.limits.BatchKeys {
			return refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d items in one request", r.limits.BatchKeys)}
		}
		var none T
		l.items = append(l.items, none)
		return item(&l.items[len(l.items)-1])
	})
}

// pair reads a list of exactly two values.
func (r *request) pair(what string, first, second func() error) error {
	if r.parser.peek() != '[' {
		return r.mismatch(what + ": an item is not a pair")
	}
	n := 0
	err := r.parser.list(func() error {
		n++
		switch n {
		case 1:
			return first()
		case 2:
			return second()
		}
		return r.parser.skip()
	})
	if n != 2 {
		r.note(what + ": an item is not a pair")
	}
	return err
}

func (r *request) key(what string, key *string) (err error) {
	if r.parser.peek() != '"' {
		return r.mismatch(what + ": a key is not a string")
	}
	*key, err = r.parser.string()
	if err == nil && len(*key) > r.limits.KeyBytes {
		err = refusal{http.StatusBadRequest, fmt.Sprintf("a key of %d bytes; at most %d", len(*key), r.limits.KeyBytes)}
	}
	return err
}

func (r *request) page(page *int64) error {
	var n number
	err := r.integer("a page", &n)
	*page = n.value
	return err
}

// integer reads a number that must be written as an integer: neither 1.0 nor 1e3.
func (r *request) integer(what string, n *number) error {
	switch c := r.parser.peek(); {
	case c == 'n':
		*n = number{}
		if what != "rank" {
			return r.mismatch(what + " is null")
		}
		return r.parser.skip()
	case !isNumber(c):
		n.given = true
		return r.mismatch(what + " is not an integer")
	}
	s, err := r.parser.number()
	if err != nil {
		return err
	}
	n.given = true
	if n.value, err = strconv.ParseInt(s, 10, 64); err != nil {
		r.note(what + " is not an integer of 64 bits")
	}
	return nil
}

// mismatch notes a value of a wrong type and skips it.
func (r *request) mismatch(what string) error {
	r.note(what)
	return r.parser.skip()
}

func (r *request) note(what string) {
	if r.wrong == nil {
		r.wrong = malformed("%s", what)
	}
}
