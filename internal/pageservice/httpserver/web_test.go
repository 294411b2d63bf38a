package httpserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// TestWebPages: no web page that a user of this host opens can change anything, and no
// client of the service is taken for one.
func TestWebPages(t *testing.T) {
	s := start(t, httpserver.Options{Hosts: []string{"gpu7.example", "Node"}}, pageservice.Options{})
	secret := start(t, httpserver.Options{Token: "secret"}, pageservice.Options{})
	own := strings.TrimPrefix(s.url, "http://")
	for name, c := range map[string]struct {
		host   string
		head   map[string]string
		status int
		says   string
	}{
		"an engine":             {own, map[string]string{"Content-Type": "application/json"}, 204, ""},
		"curl -X POST":          {own, nil, 204, ""},
		"with a charset":        {own, map[string]string{"Content-Type": "application/json; charset=utf-8"}, 204, ""},
		"by the name localhost": {"localhost:18000", nil, 204, ""},
		"in an address of IPv6": {"[::1]:18000", nil, 204, ""},
		"without a port":        {"127.0.0.1", nil, 204, ""},
		"by a name that we add": {"gpu7.example:18000", nil, 204, ""},
		"by the host's name":    {"node", nil, 204, ""},
		"of our own origin":     {own, map[string]string{"Origin": s.url, "Sec-Fetch-Site": "same-origin"}, 204, ""},

		"another origin":   {own, map[string]string{"Origin": "http://evil.example"}, 403, "evil.example"},
		"another port":     {own, map[string]string{"Origin": "http://127.0.0.1:1"}, 403, "web page"},
		"no origin":        {own, map[string]string{"Origin": "null"}, 403, "web page"},
		"cross-site":       {own, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "web page"},
		"text/plain":       {own, map[string]string{"Content-Type": "text/plain;charset=UTF-8"}, 415, "application/json"},
		"a form":           {own, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"},
		"a form of parts":  {own, map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, 415, "application/json"},
		"a wrong type":     {own, map[string]string{"Content-Type": ";"}, 415, "application/json"},
		"rebinding":        {"evil.example:18000", map[string]string{"Origin": "http://evil.example:18000"}, 403, "--pages-host"},
		"a name like ours": {"localhost.evil.example", nil, 403, "--pages-host"},
	} {
		for _, path := range []string{"/clear", "/ns/x/clear", "/admin/v1/clear", "/0/clear"} {
			status, answer := webRequest(t, s, path, c.host, c.head)
			if c.status == 204 {
				if status == 403 || status == 415 {
					t.Errorf("%s: %s: %d %s", name, path, status, answer)
				}
				continue
			}
			if status != c.status || !strings.Contains(answer, c.says) {
				t.Errorf("%s: %s: %d %s, want %d %s", name, path, status, answer, c.status, c.says)
			}
		}
	}
	// A page has no token, so the name does not matter.
	if status, _ := webRequest(t, secret, "/clear", "pages.example", map[string]string{"Authorization": "Bearer secret"}); status != 204 {
		t.Errorf("with the token: %d", status)
	}
	if status, _ := s.do(http.MethodGet, "/healthz", ""); status != 200 {
		t.Errorf("healthz: %d", status)
	}
}

func webRequest(t *testing.T, s *service, path, host string, head map[string]string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(`{"space":{"namespace":"none","set":"none"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	for k, v := range head {
		r.Header.Set(k, v)
	}
	w, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b := make([]byte, 1000)
	n, _ := w.Body.Read(b)
	return w.StatusCode, string(b[:n])
}
