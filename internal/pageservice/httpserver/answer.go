package httpserver

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// refusal is an error in the form that the client gets.
type refusal struct {
	status int
	detail string
}

func (r refusal) Error() string { return r.detail }

// retryAfterSeconds is how long a client should wait after a 503.
const retryAfterSeconds = "1"

// refuse sends an error in FastAPI's form, an object with a detail.
func refuse(w http.ResponseWriter, r refusal) {
	sendRefusal(w, r.status, appendString([]byte(`{"detail":`), r.detail))
}

const (
	// drainBytes and drainTime bound how much of a refused body is read.
	drainBytes = 64 << 20
	drainTime  = 5 * time.Second
)

// refuseRest answers before the whole body was read, and then reads some of the rest: a
// client that is still sending when the connection is closed never sees the answer. It
// does not do so for a client that was too slow.
func refuseRest(w http.ResponseWriter, r *http.Request, answer refusal) {
	w.Header().Set("Connection", "close")
	refuse(w, answer)
	if answer.status == http.StatusRequestTimeout {
		return
	}
	c := http.NewResponseController(w)
	if c.Flush() != nil || c.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, drainBytes)
}

// refuseRank refuses a rank in the path that is not an integer, in FastAPI's form.
func refuseRank(w http.ResponseWriter, input string) {
	b := []byte(`{"detail":[{"type":"int_parsing","loc":["path","rank"],"msg":"Input should be a valid integer, unable to parse string as an integer","input":`)
	b = append(appendString(b, input), `}]`...)
	sendRefusal(w, http.StatusUnprocessableEntity, b)
}

// sendRefusal completes the object and sends it.
func sendRefusal(w http.ResponseWriter, status int, b []byte) {
	h := w.Header()
	switch status {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfterSeconds)
	case http.StatusMethodNotAllowed:
		if h.Get("Allow") == "" {
			h.Set("Allow", http.MethodPost)
		}
	case http.StatusUnauthorized:
		// Basic, so that an engine can carry the token in its URL or its .netrc.
		h["Www-Authenticate"] = []string{`Bearer realm="kv3fs pages"`, `Basic realm="kv3fs pages"`}
	}
	send(w, status, append(b, '}'))
}

// send sends a JSON answer.
func send(w http.ResponseWriter, status int, b []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // fails where the client is gone
}

func appendBools(b []byte, all []bool) []byte {
	return appendList(b, all, strconv.AppendBool)
}

// appendPages appends page numbers, with null for None.
func appendPages(b []byte, all []int64) []byte {
	return appendList(b, all, func(b []byte, page int64) []byte {
		if page == pageservice.None {
			return append(b, "null"...)
		}
		return strconv.AppendInt(b, page, 10)
	})
}

func appendList[T any](b []byte, all []T, one func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, v := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, v)
	}
	return append(b, ']')
}

// appendString appends a JSON string. Invalid UTF-8 is replaced.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	if isPlain(s) && strings.IndexByte(s, '"') < 0 {
		return append(append(b, s...), '"')
	}
	for _, r := range s { // an invalid byte is read as utf8.RuneError
		switch short := strings.IndexRune("\"\\\b\f\n\r\t", r); {
		case short >= 0:
			b = append(b, '\\', `"\bfnrt`[short])
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
