package forward_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

const secret = "a secret between hosts"

// two starts a leader and a follower.
func two(t *testing.T) (l *leaders, leading, following *host) {
	t.Helper()
	l = newLeaders()
	leading = startHost(t, l, hostOptions{name: "a", token: secret})
	following = startHost(t, l, hostOptions{name: "b", token: secret})
	leading.lead(nil)
	l.set(leading.target)
	return l, leading, following
}

// TestBothProtocols: what is stored by any host is found by every host, in both protocols, and errors are the same, too.
func TestBothProtocols(t *testing.T) {
	l, a, b := two(t)
	c := startHost(t, l, hostOptions{name: "c", token: secret, bound: "two"})
	b.want("/rank/0/initialize", `{"num_pages":4}`, 200, `{"message":"rank 0 has 4 pages"}`)
	a.want("/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`, 200, `{"rank":0,"results":[["K",0]]}`)
	b.want("/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`, 204, "")
	for _, h := range []*host{a, b} {
		h.want("/keys/batch_exists", `{"keys":["K","L"]}`, 200, `{"exists":[true,false]}`)
		h.want("/keys/get_locations", `{"rank":0,"keys":["K"]}`, 200, `{"locations":[0]}`)
		h.want("/keys/get_locations", `{"rank":7,"keys":["K"]}`, 500, `{"detail":"locating keys failed: rank 7 is not initialized"}`)
		h.want("/keys/get_locations", `{"rank":0,"keys":`, 500, `{"detail":"malformed body: byte 17: the end, want a value"}`)
	}
	b.want("/ns/two/0/initialize", `{"num_pages":2}`, 204, "")
	c.want("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`, 200, `{"indices":[[false,0]]}`)
	a.want("/ns/two/0/confirm_write", `{"written_keys_to_confirm":[["K",0]]}`, 204, "")
	c.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	b.want("/ns/two/0/get_page_indices", `{"keys":["K"]}`, 200, `{"indices":[0]}`)
	b.want("/0/exists", `{"keys":["K"]}`, 404, `{"detail":"rank 0 of namespace 'kv' is not initialized: POST /0/initialize comes first"}`)
	// An address that is bound to a namespace shows only that one, whoever answers.
	if _, stat := c.do("GET", "/admin/v1/stat", ""); strings.Contains(stat, `"set":"vllm"`) || !strings.Contains(stat, `"namespace":"two"`) {
		t.Error(stat)
	}
	if status, answer := c.do("POST", "/admin/v1/clear", `{"space":{"namespace":"","set":"vllm"}}`); status != 403 {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := b.do("POST", "/admin/v1/evict", `{"space":{"namespace":"","set":"vllm"},"keys":1}`); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
	for _, h := range []*host{a, b, c} {
		if status, why := h.do("GET", "/readyz", ""); status != 200 {
			t.Errorf("readyz: %d %s", status, why)
		}
	}
}

// TestManyAtOnce: requests of many clients through a follower; bodies and answers of all sizes arrive whole. On a busy machine an answer may come too late to
// be used; then other keys are tried.
func TestManyAtOnce(t *testing.T) {
	_, a, b := two(t)
	a.want("/0/initialize", `{"num_pages":1000000}`, 204, "")
	deadline := time.Now().Add(2 * time.Minute)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			try := 0
			for n := 1; n <= 4096; {
				var keys []string
				for k := range n {
					keys = append(keys, fmt.Sprintf(`["%d.%d.%d.%d",""]`, i, n, try, k))
				}
				status, answer := b.do("POST", "/0/reserve_and_allocate_page_indices", `{"keys":[`+strings.Join(keys, ",")+`]}`)
				if try++; status == 503 && time.Now().Before(deadline) {
					continue
				}
				if got := strings.Count(answer, "[false,"); status != 200 || got != n || !strings.HasSuffix(answer, "]]}") {
					t.Errorf("%d of %d keys: %d %.200s", got, n, status, answer)
				}
				n *= 8
			}
		})
	}
	wg.Wait()
}

// TestLeaderDies: requests through a follower end with 503 at once while nobody answers, and come to the next leader,
// on the connections that engines have kept.
func TestLeaderDies(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	c := startHost(t, l, hostOptions{name: "c", token: secret})
	if why := c.refused("/0/exists", `{"keys":[]}`); !strings.Contains(why, "no host is known to lead") {
		t.Error(why)
	}
	a.lead(nil)
	l.set(a.target)
	c.want("/0/initialize", `{"num_pages":4}`, 204, "")
	b.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	// It is no leader any more, and nobody else knows.
	a.follow()
	if why := c.refused("/0/exists", `{"keys":["K"]}`); !strings.Contains(why, "a is said to lead the page service, and does not") {
		t.Error(why)
	}
	if why := a.refused("/0/exists", `{"keys":["K"]}`); !strings.Contains(why, "this host is about to lead") {
		t.Error(why)
	}
	if status, why := c.do("GET", "/readyz", ""); status != 503 {
		t.Errorf("readyz: %d %s", status, why)
	}
	b.lead(nil)
	l.set(b.target)
	for _, h := range []*host{a, b, c} {
		h.want("/0/initialize", `{"num_pages":4}`, 204, "")
	}
}

// TestStoppedLeader: a leader that takes connections and does not answer, as one that is stopped, holds no request longer than
// its deadline; once that is known, none at all; and once it answers again, all is as before.
func TestStoppedLeader(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	b := startHost(t, l, hostOptions{name: "b", token: secret, limits: httpserver.Limits{Work: time.Second}})
	a.lead(nil)
	between := startDumb(t)
	l.set(forward.Target{Host: "a", Address: between.Addr().String()})
	if why := b.refused("/0/exists", `{"keys":["K"]}`); !strings.Contains(why, "did not answer") {
		t.Error(why)
	}
	for deadline := time.Now().Add(patience); b.client.State() == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody noticed that the leader does not answer")
		}
	}
	b.refused("/0/exists", `{"keys":["K"]}`)
	between.pass(a.target.Address)
	between.cut()
	b.await("/0/initialize", `{"num_pages":4}`)
	if err := b.client.State(); err != nil {
		t.Error(err)
	}
}

// TestLeaderChangesUnderWay: a request that waits for a leader that has been replaced goes to the next one, if it may be executed
// twice; others end.
func TestLeaderChangesUnderWay(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	a.lead(nil)
	a.want("/0/initialize", `{"num_pages":4}`, 204, "")
	for _, c := range []struct {
		path, body string
		again      bool
	}{
		{"/0/exists", `{"keys":["K"]}`, true},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`, true},
		{"/0/confirm_write", `{"written_keys_to_confirm":[["K",0]]}`, true},
		{"/0/delete_keys", `{"keys":["K"]}`, false},
		{"/0/clear", `{}`, false},
		{"/clear", ``, false},
	} {
		stopped := startDumb(t)
		l.set(forward.Target{Host: "x", Address: stopped.Addr().String()})
		done := make(chan string)
		go func() {
			status, answer := b.do("POST", c.path, c.body)
			done <- fmt.Sprint(status, " ", answer)
		}()
		stopped.await(t, "POST "+c.path)
		l.set(a.target)
		if got := <-done; c.again && !strings.HasPrefix(got, "20") || !c.again && !strings.HasPrefix(got, "503") {
			t.Errorf("%s: %s", c.path, got)
		}
	}
}

// TestCutConnections: a proxy that has closed the connections that were kept costs no request that may be sent again.
func TestCutConnections(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	b := startHost(t, l, hostOptions{name: "b", token: secret})
	a.lead(nil)
	proxy := startDumb(t)
	proxy.pass(a.target.Address)
	l.set(forward.Target{Host: "a", Address: proxy.Addr().String()})
	b.await("/0/initialize", `{"num_pages":4}`)
	for range 20 {
		proxy.cut()
		b.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	}
}

// TestNoLoops: hosts that take each other for the leader forward a request once, and not in a circle.
func TestNoLoops(t *testing.T) {
	toA, toB := newLeaders(), newLeaders()
	a := startHost(t, toB, hostOptions{name: "a", token: secret})
	b := startHost(t, toA, hostOptions{name: "b", token: secret})
	var took atomic.Int64
	count := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			took.Add(1)
		}
		forward.NewHandler(b.server, forward.HandlerOptions{Identity: forward.Identity{Host: "b", Cluster: "the cluster"}, Token: secret}).ServeHTTP(w, r)
	})
	counted := serveHTTP(t, count)
	toA.set(a.target)
	toB.set(forward.Target{Host: "b", Address: counted})
	for range 10 {
		a.refused("/0/exists", `{"keys":["K"]}`)
		b.refused("/0/exists", `{"keys":["K"]}`)
	}
	if n := took.Load(); n != 10 {
		t.Errorf("10 requests were forwarded %d times", n)
	}
}

// TestFair: what one client of a host sends takes no room from others, of the same host or of another.
func TestFair(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret, limits: httpserver.Limits{LargeBytes: 8 << 20, BodyBytes: 4 << 20, Grace: patience, Work: 2 * time.Second, Body: patience}})
	a.lead(nil)
	a.want("/0/initialize", `{"num_pages":4}`, 204, "")
	// A client of host b sends bodies that do not come, as far as it may.
	for range 4 {
		c := dial(t, a.target.Address)
		fmt.Fprintf(c, "POST /0/exists HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nKv3fs-Forward: 2\r\nKv3fs-Host: b\r\nKv3fs-Cluster: the cluster\r\nKv3fs-To: a\r\nKv3fs-Client: uid 1\r\nContent-Length: %d\r\n\r\n{", secret, 4<<20-1)
	}
	body := `{"keys":["` + strings.Repeat("k", 1<<20) + `"]}`
	for _, from := range [][2]string{{"b", "uid 2"}, {"c", "uid 1"}} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+a.target.Address+"/0/exists", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer " + secret}, "Kv3fs-Forward": {"2"}, "Kv3fs-Host": {from[0]}, "Kv3fs-Cluster": {"the cluster"}, "Kv3fs-To": {"a"}, "Kv3fs-Client": {from[1]}}
		w, err := a.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != http.StatusBadRequest { // the key is too long: it was read
			t.Errorf("client %v: %d", from, w.StatusCode)
		}
	}
}

// TestOtherCluster: a host of another cluster that has got the leader's address, and the same secret, answers nothing, though it leads its own;
// nor does another host of the same cluster.
func TestOtherCluster(t *testing.T) {
	for name, c := range map[string]struct {
		there hostOptions
		says  string
	}{
		"another cluster": {hostOptions{name: "a", cluster: " of others"}, `is of the cluster \"the cluster of others\", and that one of \"the cluster\"`},
		"another host":    {hostOptions{name: "c"}, `this is host c, and not \"a\"`},
		"the same name":   {hostOptions{name: "b"}, `a host with this one's identity \"b\" leads the page service at `},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeaders()
			c.there.token = secret
			there := startHost(t, newLeaders(), c.there)
			b := startHost(t, l, hostOptions{name: "b", token: secret})
			there.lead(nil)
			there.want("/0/initialize", `{"num_pages":4}`, 204, "")
			to := forward.Target{Host: "a", Address: there.target.Address}
			if c.there.name == "b" {
				to.Host = "b"
			}
			l.set(to)
			if why := b.refused("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`); !strings.Contains(why, c.says) {
				t.Error(why)
			}
			if c.there.name != "b" {
				b.log.await(t, "does not take requests") // the ping says so, too
			}
		})
	}
}

// TestTwins: a host refuses another one that has its identity, and both are told.
func TestTwins(t *testing.T) {
	l := newLeaders()
	a := startHost(t, l, hostOptions{name: "a", token: secret})
	a.lead(nil)
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+a.target.Address+"/0/initialize", strings.NewReader(`{"num_pages":4}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + secret}, "Kv3fs-Forward": {"2"}, "Kv3fs-Host": {"a"}, "Kv3fs-Cluster": {"the cluster"}, "Kv3fs-To": {"a"}}
	w, err := a.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != http.StatusMisdirectedRequest || w.Header.Get("Kv3fs-Refused") == "" {
		t.Error(w.Status, w.Header)
	}
	a.log.await(t, `two hosts have the identity`)
}

// TestMetricsOfHosts: a request is counted once, on the host whose engine has sent it, with its namespace; and that it was forwarded, on the
// other.
func TestMetricsOfHosts(t *testing.T) {
	_, a, b := two(t)
	b.want("/ns/model/0/initialize", `{"num_pages":4}`, 204, "")
	b.want("/ns/mistyped/0/initialize", `{}`, 500, `{"detail":"malformed body: num_pages is missing"}`)
	for range 3 {
		b.want("/ns/model/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	}
	b.want("/ns/mistyped/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	for _, c := range []struct {
		at   *host
		line string
		has  bool
	}{
		{b, `kv3fs_pages_requests_total{code="200",namespace="model",route="sglang/exists"} 3`, true},
		{b, `kv3fs_pages_requests_total{code="200",namespace="(other)",route="vllm/batch_exists"} 1`, true},
		{b, `mistyped`, false},
		{b, `kv3fs_pages_forwarded_requests_total{`, false},
		{a, `kv3fs_pages_requests_total{`, false},
		{a, `kv3fs_pages_forwarded_requests_total{code="200",route="sglang/exists"} 3`, true},
	} {
		if _, text := c.at.do("GET", "/metrics", ""); strings.Contains(text, c.line) != c.has {
			t.Errorf("%s: %s is there: %v\n%s", c.at.target.Host, c.line, !c.has, text)
		}
	}
}

// TestReadiness: followers ask the leader whether it is ready as seldom as it looks at its disk, whoever asks them.
func TestReadiness(t *testing.T) {
	_, a, b := two(t)
	began := time.Now()
	var asked sync.WaitGroup
	for range 100 {
		asked.Go(func() {
			if status, why := b.do("GET", "/readyz", ""); status != 200 {
				t.Errorf("%d %s", status, why)
			}
		})
	}
	asked.Wait()
	if most := 1 + int64(time.Since(began)/time.Second); a.readiness.Load() > most {
		t.Errorf("the leader was asked %d times, want at most %d", a.readiness.Load(), most)
	}
	if a.readiness.Load() == 0 {
		t.Error("the leader was not asked")
	}
}
