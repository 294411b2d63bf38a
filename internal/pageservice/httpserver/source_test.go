package httpserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// engineRoutes are requests of both engines for a rank 0 that is known and has K, and what they answer.
var engineRoutes = [][2]string{
	{"/rank/0/initialize", `{"num_pages":4}`},
	{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`},
	{"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`},
	{"/keys/batch_exists", `{"keys":["K"]}`},
	{"/keys/get_locations", `{"rank":0,"keys":["K"]}`},
	{"/0/initialize", `{"num_pages":4}`},
	{"/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`},
	{"/0/confirm_write", `{"written_keys_to_confirm":[["K",0]],"pages_to_release":[]}`},
	{"/0/exists", `{"keys":["K"]}`},
	{"/0/get_page_indices", `{"keys":["K"]}`},
	{"/0/delete_keys", `{"keys":["K"]}`},
	{"/0/clear", `{}`},
	{"/clear", `{}`},
}

// unavailable posts a request that must be answered with 503 and Retry-After, and returns why.
func (s *service) unavailable(path, body string) string {
	s.t.Helper()
	w, err := s.http.Post(s.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	var b strings.Builder
	if _, err := io.Copy(&b, w.Body); err != nil {
		s.t.Fatal(err)
	}
	if w.StatusCode != http.StatusServiceUnavailable || w.Header.Get("Retry-After") == "" {
		s.t.Errorf("%s: %d %v %s", path, w.StatusCode, w.Header, &b)
	}
	return b.String()
}

// TestNothingFromALostIndex: no route answers from an index that somebody else may have overtaken, whatever was
// executed.
func TestNothingFromALostIndex(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	var valid atomic.Bool
	valid.Store(true)
	s.server.Switch(httpserver.Source{Index: s.index, Valid: valid.Load})
	for _, r := range engineRoutes {
		s.ok(r[0], r[1])
	}
	s.ok("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`)
	valid.Store(false)
	for _, r := range engineRoutes {
		if why := s.unavailable(r[0], r[1]); !strings.Contains(why, "no longer leads") {
			t.Error(r, why)
		}
	}
	for _, path := range []string{"/admin/v1/list", "/admin/v1/evict"} {
		s.unavailable(path, `{"space":{"namespace":"","set":"vllm"},"limit":1,"keys":1}`)
	}
	if status, why := s.do("GET", "/readyz", ""); status != 503 || !strings.Contains(why, "no longer leads") {
		t.Errorf("readyz: %d %s", status, why)
	}
	valid.Store(true)
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
}

// TestSwitch: the index of a server is replaced without its clients noticing more than 503.
func TestSwitch(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	c := s.raw() // stays open throughout
	if !answers(c) {
		t.Fatal("no answer")
	}
	s.ok("/0/initialize", `{"num_pages":4}`)
	s.server.Switch(httpserver.Source{Why: errors.New("its etcd does not answer")})
	if why := s.unavailable("/0/exists", `{"keys":["K"]}`); !strings.Contains(why, "its etcd does not answer") {
		t.Error(why)
	}
	if status, why := s.do("GET", "/readyz", ""); status != 503 || !strings.Contains(why, "its etcd does not answer") {
		t.Errorf("readyz: %d %s", status, why)
	}
	if status, answer := s.do("GET", "/admin/v1/store", ""); status != 200 || !strings.Contains(answer, "waiting") {
		t.Errorf("store: %d %s", status, answer)
	}
	if w, err := s.http.Get(s.url + "/metrics"); err != nil || w.StatusCode != 200 {
		t.Errorf("metrics: %v %v", w, err)
	} else {
		w.Body.Close()
	}
	if err := s.index.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := index.Open(journal.New(t.TempDir(), journal.Options{}), index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s.server.Switch(httpserver.Source{Index: other})
	s.ok("/0/initialize", `{"num_pages":4}`)
	if status, why := s.do("GET", "/readyz", ""); status != 200 {
		t.Errorf("readyz: %d %s", status, why)
	}
	if !answers(c) {
		t.Error("the connection was closed")
	}
}

// TestSwitchUnderWay: requests that wait for the log of an index that is closed end with 503, and readiness does not
// hold it against the next one.
func TestSwitchUnderWay(t *testing.T) {
	log := &heldLog{Log: journal.New(t.TempDir(), journal.Options{}), held: make(chan struct{}), waiting: make(chan struct{}, 1)}
	s := startWith(t, log, httpserver.Options{}, index.Options{})
	s.ok("/0/initialize", `{"num_pages":4}`)
	log.hold.Store(true)
	done := make(chan string)
	go func() { done <- s.unavailable("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`) }()
	<-log.waiting
	next, err := index.Open(journal.New(t.TempDir(), journal.Options{}), index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	s.server.Switch(httpserver.Source{Index: next})
	close(log.held)
	if why := <-done; !strings.Contains(why, "closed") {
		t.Error(why)
	}
	if status, why := s.do("GET", "/readyz", ""); status != 200 {
		t.Errorf("readyz: %d %s", status, why)
	}
}

// heldLog answers writes like a log that was closed under them, when it is told to.
type heldLog struct {
	pageservice.Log
	hold          atomic.Bool
	held, waiting chan struct{}
}

func (l *heldLog) Append(done func(error), recs ...[]byte) func(context.Context) error {
	if !l.hold.Load() {
		return l.Log.Append(done, recs...)
	}
	return func(context.Context) error {
		l.waiting <- struct{}{}
		<-l.held
		done(pageservice.ErrClosed)
		return pageservice.ErrClosed
	}
}

// leader answers everything that is forwarded to it with a text, once it may.
type leader struct {
	answer  httpserver.Answer
	meets   func()
	got     []httpserver.Forwarded
	failing error
}

func (l *leader) Forward(_ context.Context, q httpserver.Forwarded) (httpserver.Answer, error) {
	if q.Sending != nil {
		if err := q.Sending(); err != nil {
			return httpserver.Answer{}, err
		}
	}
	if l.meets != nil {
		l.meets()
	}
	q.Body = []byte(string(q.Body)) // it is reused
	l.got = append(l.got, q)
	return l.answer, l.failing
}

// TestLateAnswers: an answer that promises something for a time is not sent when part of that time is over, wherever it
// came from: this process or the leader's may have been stopped meanwhile.
func TestLateAnswers(t *testing.T) {
	times := pageservice.Options{}.WithDefaults()
	for _, c := range []struct {
		path  string
		fresh time.Duration // 0: at any age
	}{
		{"/keys/batch_allocate", 5 * time.Second}, {"/keys/get_locations", 5 * time.Second}, {"/keys/batch_exists", 5 * time.Second},
		{"/0/reserve_and_allocate_page_indices", 5 * time.Second}, {"/0/get_page_indices", 5 * time.Second}, {"/0/exists", 5 * time.Second},
		{"/keys/confirm_write", 0}, {"/0/confirm_write", 0}, {"/0/delete_keys", 0},
	} {
		s := start(t, httpserver.Options{Times: times}, pageservice.Options{})
		var now atomic.Int64
		s.server.SetClock(func() time.Duration { return time.Duration(now.Load()) })
		var takes time.Duration
		far := &leader{answer: httpserver.Answer{Status: 200, Body: []byte(`{}`)}, meets: func() { now.Add(int64(takes)) }}
		s.server.Switch(httpserver.Source{Leader: far})
		takes = 4 * time.Second
		s.want(c.path, `{}`, 200, `{}`)
		takes = 6 * time.Second
		if c.fresh == 0 {
			s.want(c.path, `{}`, 200, `{}`)
		} else if why := s.unavailable(c.path, `{}`); !strings.Contains(why, "too late") {
			t.Error(c.path, why)
		}
	}
}

// TestForwarded: what the leader is told of a request.
func TestForwarded(t *testing.T) {
	s := start(t, httpserver.Options{Limits: httpserver.Limits{BodyBytes: 1000}}, pageservice.Options{})
	far := &leader{answer: httpserver.Answer{Status: 404, Body: []byte(`{"detail":"no"}`)}}
	s.server.Switch(httpserver.Source{Leader: far})
	bound := startOn(t, s.index, httpserver.Options{}, "two")
	bound.server.Switch(httpserver.Source{Leader: far})
	s.want("/ns/one/0/exists", `{"keys":[]}`, 404, `{"detail":"no"}`)
	bound.want("/0/clear", `{"keys":[]}`, 404, `{"detail":"no"}`)
	s.want("/admin/v1/evict", `{}`, 404, `{"detail":"no"}`)
	s.do("GET", "/admin/v1/stat", "")
	// These are refused here.
	if status, _ := s.post("/0/exists", strings.Repeat("x", 1001)); status != 413 {
		t.Errorf("a large body: %d", status)
	}
	s.want("/0/nothing", `{}`, 404, `{"detail":"Not Found"}`)
	s.want("/rank/x/initialize", `{}`, 422, `{"detail":[{"type":"int_parsing","loc":["path","rank"],"msg":"Input should be a valid integer, unable to parse string as an integer","input":"x"}]}`)
	wants := []httpserver.Forwarded{
		{Method: "POST", Path: "/ns/one/0/exists", Body: []byte(`{"keys":[]}`), Again: true},
		{Method: "POST", Path: "/0/clear", Bound: "two", Body: []byte(`{"keys":[]}`)},
		{Method: "POST", Path: "/admin/v1/evict", Body: []byte(`{}`)},
		{Method: "GET", Path: "/admin/v1/stat", Again: true},
	}
	if len(far.got) != len(wants) {
		t.Fatalf("%d were forwarded, want %d", len(far.got), len(wants))
	}
	for i, w := range wants {
		g := far.got[i]
		if g.Method != w.Method || g.Path != w.Path || g.Bound != w.Bound || string(g.Body) != string(w.Body) || g.Again != w.Again || g.Client != "127.0.0.1" {
			t.Errorf("%d: %+v, want %+v", i, g, w)
		}
	}
	far.failing = errors.New("nobody leads")
	if why := s.unavailable("/0/exists", `{"keys":[]}`); !strings.Contains(why, "nobody leads") {
		t.Error(why)
	}
}
