package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/exactjson"
)

// jsonStream prints a report one of whose fields is a list that may be too long for memory: the
// list first, then the other fields, with those of every report that are known only then.
type jsonStream struct {
	out     io.Writer
	field   string
	n       int
	notUTF8 map[string][]byte
}

// newJSONStream begins a report.
func newJSONStream(out io.Writer, command, field string) (*jsonStream, error) {
	_, err := fmt.Fprintf(out, "{\n  \"schema\": %d,\n  \"command\": %q,\n  %q: [", jsonSchema, command, field)
	return &jsonStream{out: out, field: field, notUTF8: map[string][]byte{}}, err
}

// add prints an element of the list.
func (s *jsonStream) add(v any) error {
	for pointer, text := range exactjson.NotUTF8(v) {
		s.notUTF8["/"+exactjson.Escape(s.field)+"/"+strconv.Itoa(s.n)+pointer] = text
	}
	b, err := json.MarshalIndent(v, "    ", "  ")
	if err != nil {
		return err
	}
	comma := ","
	if s.n++; s.n == 1 {
		comma = ""
	}
	_, err = fmt.Fprintf(s.out, "%s\n    %s", comma, b)
	return err
}

// end prints the other fields, those of the struct rest among them.
func (s *jsonStream) end(interrupted bool, rest any) error {
	for pointer, text := range exactjson.NotUTF8(rest) {
		s.notUTF8[pointer] = text
	}
	tail := struct {
		Interrupted bool              `json:"interrupted"`
		NotUTF8     map[string][]byte `json:"not_utf8,omitempty"`
	}{interrupted, s.notUTF8}
	var fields []string
	for _, part := range []any{rest, tail} {
		if part == nil || reflect.ValueOf(part).NumField() == 0 {
			continue
		}
		b, err := json.MarshalIndent(part, "", "  ")
		if err != nil {
			return err
		}
		fields = append(fields, string(bytes.TrimSuffix(bytes.TrimPrefix(b, []byte("{\n")), []byte("\n}"))))
	}
	bracket := "\n  ]"
	if s.n == 0 {
		bracket = "]"
	}
	_, err := fmt.Fprintf(s.out, "%s,\n%s\n}\n", bracket, strings.Join(fields, ",\n"))
	return err
}

// streamed prints a report whose list fn gives to add, with the other fields that it returns, also
// if it fails or a signal interrupts it.
func streamed(ctx context.Context, out io.Writer, command, field string, fn func(add func(any) error) (rest any, err error)) error {
	buffered, flush := lineWriter(out)
	defer flush()
	s, err := newJSONStream(buffered, command, field)
	if err != nil {
		return err
	}
	rest, err := fn(s.add)
	return cmp.Or(err, s.end(ctx.Err() != nil, rest))
}

// lines buffers what is printed, but not for long.
type lines struct {
	*bufio.Writer
	flushed time.Time
}

// Write writes to the buffer.
func (l *lines) Write(b []byte) (int, error) {
	n, err := l.Writer.Write(b)
	const shown = 200 * time.Millisecond
	if err == nil && time.Since(l.flushed) > shown {
		err = l.Flush()
		l.flushed = time.Now()
	}
	return n, err
}

// lineWriter returns a writer for many lines, which must be flushed at the end.
func lineWriter(out io.Writer) (w io.Writer, flush func()) {
	l := &lines{Writer: bufio.NewWriterSize(out, 32<<10), flushed: time.Now()}
	return l, func() { _ = l.Flush() } // whoever reads it has gone
}
