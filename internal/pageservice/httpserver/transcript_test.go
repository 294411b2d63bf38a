package httpserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// asRequests returns a request as Python's requests library sends it.
func asRequests(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost:18000\r\nUser-Agent: python-requests/2.32.3\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// TestTranscripts replays exactly what the clients send, on one connection that is kept
// open (R40, R41), without and with a namespace in the path.
func TestTranscripts(t *testing.T) {
	for _, file := range []string{"vllm", "sglang"} {
		text, err := os.ReadFile("testdata/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"", "/ns/m.1_a-B"} {
			t.Run(file+prefix, func(t *testing.T) {
				s := start(t, httpserver.Options{}, pageservice.Options{})
				replay(t, s, prefix, string(text))
			})
		}
	}
}

func replay(t *testing.T, s *service, prefix, text string) {
	c := s.raw()
	r := bufio.NewReader(c)
	var got string
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			path, body, _ := strings.Cut(line[2:], " ")
			if _, err := io.WriteString(c, asRequests(prefix+path, body)); err != nil {
				t.Fatal(err)
			}
			w, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("line %d: %v", n+1, err)
			}
			answer, err := io.ReadAll(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			got = strings.TrimSpace(fmt.Sprintf("%d %s", w.StatusCode, answer))
			if kind := w.Header.Get("Content-Type"); len(answer) > 0 && kind != "application/json" {
				t.Errorf("line %d: content type %q", n+1, kind)
			}
		case strings.HasPrefix(line, "< "):
			if got != line[2:] {
				t.Errorf("line %d:\n got %s\nwant %s", n+1, got, line[2:])
			}
		}
	}
}

// TestPipelining: requests that arrive together are answered one after the other.
func TestPipelining(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	c := s.raw()
	_, err := io.WriteString(c, asRequests("/0/initialize", `{"num_pages":8}`)+
		asRequests("/0/reserve_and_allocate_page_indices", `{"keys":[["a",""]]}`)+
		asRequests("/0/confirm_write", `{"written_keys_to_confirm":[["a",0]],"pages_to_release":[]}`)+
		asRequests("/0/exists", `{"keys":["a","b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for _, want := range []string{"204 ", `200 {"indices":[[false,0]]}`, "204 ", `200 {"exists":[true,false]}`} {
		w, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(w.Body)
		if got := fmt.Sprintf("%d %s", w.StatusCode, answer); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestLiteralSegmentsWin (R42): the paths of vLLM are not mistaken for ranks, and the two
// protocols have separate states.
func TestLiteralSegmentsWin(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.ok("/0/initialize", `{"num_pages":4}`)
	s.ok("/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`)
	s.want("/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`, 204, "")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	s.want("/0/clear", `{}`, 204, "")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	s.want("/clear", ``, 204, "")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)

	for _, path := range []string{"/keys/exists", "/keys/initialize", "/rank/0/exists", "/rank//initialize", "/rank/initialize", "/", "/0", "/0/exists/", "//exists", "/0/initialise", "/clear/", "/ns", "/ns/a", "/ns/a b/clear", "/ns//clear", "/ns/a/ns/b/clear", "/ns/a/healthz", "/admin/clear", "/docs"} {
		s.want(strings.ReplaceAll(path, " ", "%20"), `{}`, 404, `{"detail":"Not Found"}`)
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		for _, path := range []string{"/clear", "/0/clear", "/keys/batch_exists", "/rank/0/initialize", "/ns/a/clear"} {
			if status, answer := s.do(method, path, ""); status != 405 || answer != `{"detail":"Method Not Allowed"}` {
				t.Errorf("%s %s: %d %s", method, path, status, answer)
			}
		}
	}
}

// TestRanksOfPaths: a rank that is not an integer gets 422 in FastAPI's form.
func TestRanksOfPaths(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	for _, c := range []struct{ rank, input string }{{"x", "x"}, {"1.5", "1.5"}, {"+-1", "+-1"}, {"-", "-"}, {"0x1", "0x1"}, {"1e3", "1e3"}, {"%C3%A9%22", `é\"`}, {"%ff", "\ufffd"}} {
		want := `{"detail":[{"type":"int_parsing","loc":["path","rank"],"msg":"Input should be a valid integer, unable to parse string as an integer","input":"` + c.input + `"}]}`
		s.want("/"+c.rank+"/exists", `{"keys":[]}`, 422, want)
		s.want("/rank/"+c.rank+"/initialize", `{"num_pages":4}`, 422, want)
	}
	before := s.state()
	for _, rank := range []string{"-1", "9223372036854775807", "99999999999999999999999", "-99999999999999999999999"} {
		for path, body := range map[string]string{"/rank/" + rank + "/initialize": `{"num_pages":4}`, "/" + rank + "/initialize": `{"num_pages":4}`} {
			if status, answer := s.post(path, body); status != 400 {
				t.Errorf("%s: %d %s", path, status, answer)
			}
		}
		if status, answer := s.post("/"+rank+"/exists", `{"keys":["a"]}`); status != 404 {
			t.Errorf("rank %s: %d %s", rank, status, answer)
		}
	}
	s.ok("/+3/initialize", `{"num_pages":4}`)
	s.ok("/003/exists", `{"keys":[]}`)
	if before != "" {
		t.Errorf("the index is not empty: %s", before)
	}
}
