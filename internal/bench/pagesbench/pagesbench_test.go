package pagesbench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("NOT TESTED: there is no python3")
	}
	return path
}

func reference(t *testing.T) *service {
	t.Helper()
	s, err := startReference(t.Context(), python(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The reference answers the exchanges of docs/spec/clients.md, 6.6 and 7.6, as described
// there.
func TestReferenceAnswersAsSpecified(t *testing.T) {
	s := reference(t)
	c, err := dial(s.to.address, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, step := range []struct {
		path, body string
		status     int
		answer     string
	}{
		{"/rank/0/initialize", `{"num_pages":4,"role":"worker"}`, 200, `{"message":"rank 0 is initialised"}`},
		{"/rank/1/initialize", `{"num_pages":4}`, 200, `{"message":"rank 1 is initialised"}`},
		{"/rank/2/initialize", `{"num_pages":0}`, 400, `{"detail":"num_pages must be positive"}`},
		{"/rank/x/initialize", `{"num_pages":4}`, 422, `{"detail":"rank must be an integer"}`},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`, 200, `{"rank":0,"results":[["K",0]]}`},
		{"/keys/batch_allocate", `{"rank":1,"keys":[["K",""]]}`, 200, `{"rank":1,"results":[["K",0]]}`},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]],"pages_to_release":[]}`, 204, ``},
		{"/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`},
		{"/keys/confirm_write", `{"rank":1,"confirmations":[["K",0]],"pages_to_release":[]}`, 204, ``},
		{"/keys/batch_exists", `{"keys":["K","L"]}`, 200, `{"exists":[true,false]}`},
		{"/keys/get_locations", `{"rank":1,"keys":["K","L"]}`, 200, `{"locations":[0,null]}`},
		{"/keys/get_locations", `{"rank":7,"keys":["K"]}`, 500, `{"detail":"KeyError(7)"}`},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`, 200, `{"rank":0,"results":[["K",0]]}`},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""],["1",""],["2",""],["3",""]]}`, 200, `{"rank":0,"results":[["K",0],["1",-1],["2",-1],["3",-1]]}`},
		{"/clear", ``, 204, ``},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`, 500, `{"detail":"KeyError(0)"}`},

		{"/0/exists", `{"keys":["a"]}`, 404, `{"detail":"rank 0 is not initialised"}`},
		{"/0/initialize", `{"num_pages":1}`, 204, ``},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["a",""]]}`, 200, `{"indices":[[false,0]]}`},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["b",""]]}`, 500, `{"detail":"KeyError('dictionary is empty')"}`},
		{"/0/confirm_write", `{"written_keys_to_confirm":[["a",0]],"pages_to_release":[]}`, 204, ``},
		{"/0/get_page_indices", `{"keys":["a","b"]}`, 200, `{"indices":[0,null]}`},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["a",""],["b",""]]}`, 200, `{"indices":[[true,0],[false,0]]}`},
		{"/0/delete_keys", `{"keys":["a"]}`, 204, ``},
		{"/0/clear", `{}`, 204, ``},
		{"/0/exists", `{"keys":["a"]}`, 200, `{"exists":[false]}`},
	} {
		status, answer, err := c.do(seal(append(newBody(nil), step.body...), s.to, step.path))
		if err != nil || status != step.status || string(answer) != step.answer {
			t.Errorf("%s %s: %d %s (%v), not %d %s", step.path, step.body, status, answer, err, step.status, step.answer)
		}
	}
}

// A second reference takes the place of the page service.
func TestRunMeasures(t *testing.T) {
	s := reference(t)
	o := Options{
		URL: "http://" + s.to.address, Python: python(t), Scratch: t.TempDir(),
		Clients: 2, Batch: 16, Pages: 1 << 15, Runs: 2, RunTime: 10 * time.Millisecond,
	}
	runs := 0
	o.Done = func(n, of int) {
		if runs++; n != runs || n > of {
			t.Errorf("run %d is called %d of %d", runs, n, of)
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Protocols {
		for _, c := range p.Rates {
			if c.Ours.Median <= 0 || c.Reference.Median <= 0 || c.Ratio <= 0 || c.ReferenceCPUMicros < 0 {
				t.Errorf("%s: %+v", p.Name, c)
			}
		}
		for _, c := range p.Waits {
			if c.Ours.P50Ms <= 0 || c.Ours.P99Ms < c.Ours.P50Ms || c.Reference.P50Ms <= 0 {
				t.Errorf("%s: %+v", p.Name, c)
			}
		}
		if len(p.Rates) != 4 || len(p.Waits) != 3 || p.Full != nil {
			t.Errorf("%+v", p)
		}
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "allocate+confirm alone, ms p50 p99") {
		t.Errorf("%v: %s", err, table.String())
	}
}

// A client accepts no wrong answer.
func TestClientsNotice(t *testing.T) {
	const batch = 8
	known := []int64{7, 6, 5, 4, 3, 2, 1, 0}
	for _, d := range []dialect{vllmDialect(), sglangDialect()} {
		pairs := func(page func(i int) int) string {
			var all [][2]any
			for i := range batch {
				var key any = string(d.appendKey(nil, uint64(i)))
				if d.name == "sglang" {
					key = false
				}
				all = append(all, [2]any{key, page(i)})
			}
			text, _ := json.Marshal(map[string]any{"rank": 0, d.allocated: all})
			return string(text)
		}
		exists := func(text string) string { return `{"exists":[` + text + `]}` }
		for _, c := range []struct {
			name   string
			do     func(*client) error
			status int
			answer string
		}{
			{"an error", (*client).askExists, 500, `{"detail":"x"}`},
			{"a miss", (*client).askExists, 200, exists("true,true,true,true,true,false,false,false")},
			{"hits at the wrong place", (*client).askExists, 200, exists("false,true,true,true,true,true,true,false")},
			{"no page", (*client).askLocate, 200, `{"` + d.located + `":[0,0,0,0,0,null,null,null]}`},
			{"a wrong page", (*client).askLocate, 200, `{"` + d.located + `":[9,9,9,9,9,9,null,null]}`},
			{"no page for a new key", (*client).allocateFirst, 200, pairs(func(int) int { return -1 })},
			{"one page for all", (*client).allocateFirst, 200, pairs(func(int) int { return 4 })},
			{"fewer pairs", (*client).allocateFirst, 200, `{"` + d.allocated + `":[["a",1]]}`},
			{"no pairs", (*client).allocateFirst, 200, `{"` + d.allocated + `":[]}`},
			{"nothing", (*client).allocateFirst, 200, `{}`},
		} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.WriteHeader(c.status)
				io.WriteString(w, c.answer)
			}))
			cl, err := newClient(d, target{address: server.Listener.Addr().String()}, 0, batch, known)
			if err != nil {
				t.Fatal(err)
			}
			cl.sinceCheck = checkEvery
			if err := c.do(cl); err == nil {
				t.Errorf("%s: %s is accepted: %s", d.name, c.name, c.answer)
			}
			cl.conn.close()
			server.Close()
		}

		answer := []byte(pairs(func(i int) int { return i * 1000 }))
		pages, err := d.pagesOf(answer, nil)
		if err != nil || !slices.Equal(pages, []int64{0, 1000, 2000, 3000, 4000, 5000, 6000, 7000}) {
			t.Errorf("%s: %v %v", d.name, pages, err)
		}
		if err := d.checkAllocated(answer, 0, pages); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
}

func (c *client) allocateFirst() error {
	_, err := c.store(0)
	return err
}

func TestOptions(t *testing.T) {
	for text, o := range map[string]Options{
		"no kv3fs":       {},
		"pages are too":  {Binary: "x", Pages: 10},
		"is not http://": {URL: "https://a:1"},
		"protocol":       {Binary: "x", Protocols: []string{"x"}},
		"batches":        {Binary: "x", Batch: -1},
		"clients":        {Binary: "x", Clients: -1},
		"runs":           {Binary: "x", Runs: -1},
	} {
		if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{URL: "http://h:1/ns/a/"}
	if to, err := o.urlTarget(); err != nil || to != (target{"h:1", "/ns/a"}) {
		t.Errorf("%+v %v", to, err)
	}
}

// The report of a missed aim says what this machine allows at most.
func TestTableTellsTheBound(t *testing.T) {
	missed := Rate{Case: "exists", Ratio: 4, RatioBound: 6.31, CPUMicros: 50, ClientCPUMicros: 15, ReferenceCPUMicros: 183, Reference: &measure.Spread{}}
	reached := missed
	reached.Case, reached.Ratio = "locate", 21
	var table strings.Builder
	if err := (&Report{Protocols: []Protocol{{Name: "vllm", Rates: []Rate{missed, reached}}}}).WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, table.String())
	for line := range strings.Lines(table.String()) {
		if strings.HasPrefix(line, "exists, requests/s") && !strings.HasSuffix(line, "50+15 / 183  at least 20; here at most 6.3\n") {
			t.Errorf("missed: %q", line)
		}
		if strings.HasPrefix(line, "locate, requests/s") && !strings.HasSuffix(line, "at least 20\n") {
			t.Errorf("reached: %q", line)
		}
	}
}

// checkWidth checks that a report fits on a terminal.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > measure.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
