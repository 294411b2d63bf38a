package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// stuck is a source whose status does not come until it is let go, whatever the context.
type stuck struct {
	Source
	asked chan struct{}
	goOn  chan struct{}
}

func (s stuck) Status(context.Context) (Status, error) {
	s.asked <- struct{}{}
	<-s.goOn
	return Status{Mount: "/odd\xff"}, nil
}

// While as many are asked for as there may be, further requests are refused at once, with a cure; then there is room again.
func TestManyRequests(t *testing.T) {
	s := stuck{asked: make(chan struct{}, 2*mostRequests), goOn: make(chan struct{})}
	h := New(Options{Source: s})
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+"status", nil))
		return w
	}
	answers := make(chan *httptest.ResponseRecorder)
	for range mostRequests {
		go func() { answers <- ask() }()
	}
	for range mostRequests {
		<-s.asked
	}
	var why Failure
	if w := ask(); w.Code != http.StatusServiceUnavailable || json.Unmarshal(w.Body.Bytes(), &why) != nil || why.Error == "" || why.Cure == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	close(s.goOn)
	for range mostRequests {
		var is Status
		if w := <-answers; w.Code != http.StatusOK || Decode(w.Body.Bytes(), &is) != nil || is.Mount != "/odd\xff" || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if w := ask(); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// named is a level of a log.
type named struct{ level string }

func (n *named) Level() string               { return n.level }
func (n *named) SetLevel(level string) error { n.level = level; return nil }

// A change needs JSON, which no page of another origin can send, a known body, and the right to change anything.
func TestChanges(t *testing.T) {
	for _, c := range []struct {
		unchanged, media, body string
		status                 int
	}{
		{"", "application/json", `{"level":"debug"}`, http.StatusOK},
		{"", "application/json; charset=utf-8", `{"level":"debug"}`, http.StatusOK},
		{"give a token", "application/json", `{"level":"debug"}`, http.StatusForbidden},
		{"", "text/plain", `{"level":"debug"}`, http.StatusUnsupportedMediaType},
		{"", "", `{"level":"debug"}`, http.StatusUnsupportedMediaType},
		{"", "application/json", `{"level":"debug","more":1}`, http.StatusBadRequest},
		{"", "application/json", `{"level":"` + strings.Repeat("x", mostBytes) + `"}`, http.StatusBadRequest},
	} {
		level := &named{"info"}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, Prefix+"log-level", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.media)
		w := httptest.NewRecorder()
		var told []any
		changed := func(from *http.Request, call string, attrs ...any) {
			told = append([]any{from.RemoteAddr, call}, attrs...)
		}
		New(Options{Level: level, Unchanged: func() string { return c.unchanged }, Changed: changed}).ServeHTTP(w, r)
		if want := []any{r.RemoteAddr, "log-level", "from", "info", "to", "debug"}; c.status == http.StatusOK && !slices.Equal(told, want) || c.status != http.StatusOK && told != nil {
			t.Errorf("%+v: told %v", c, told)
		}
		if w.Code != c.status || (level.level == "debug") != (c.status == http.StatusOK) {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
}
