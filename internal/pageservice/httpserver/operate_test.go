package httpserver_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// textLog returns a logger that writes everything into b.
func textLog(b *strings.Builder) *slog.Logger {
	return slog.New(slog.NewTextHandler(&lockedWriter{w: b}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// brokenDisk fails every commit on demand.
type brokenDisk struct{ failing atomic.Bool }

func (d *brokenDisk) commit(commit func() error) error {
	if d.failing.Load() {
		return syscall.EIO
	}
	return commit()
}

// startBroken starts a service whose disk can be made to fail.
func startBroken(t *testing.T, o httpserver.Options) (*service, *brokenDisk) {
	d := &brokenDisk{}
	return startWith(t, journal.New(t.TempDir(), journal.Options{Commit: d.commit}), o, index.Options{}), d
}

// TestUnavailable: if the index cannot write, clients get 503, after which they try again,
// and the service is not ready; there is one log line, not one per request.
func TestUnavailable(t *testing.T) {
	var log strings.Builder
	s, disk := startBroken(t, httpserver.Options{Log: textLog(&log)})
	s.ok("/0/initialize", `{"num_pages":4}`)
	s.reserveS("K")
	disk.failing.Store(true)
	for range 20 {
		w, err := s.http.Post(s.url+"/0/confirm_write", "application/json", strings.NewReader(`{"written_keys_to_confirm":[["K",0]]}`))
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != 503 || w.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v", w.StatusCode, w.Header)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, &log)
	}
	if status, answer := s.do("GET", "/readyz", ""); status != 503 || !strings.Contains(answer, "cannot write") {
		t.Errorf("readyz: %d %s", status, answer)
	}
	if status, _ := s.do("GET", "/healthz", ""); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	disk.failing.Store(false)
	s.want("/0/confirm_write", `{"written_keys_to_confirm":[["K",0]]}`, 204, "")
	if status, answer := s.do("GET", "/readyz", ""); status != 200 {
		t.Errorf("readyz again: %d %s", status, answer)
	}
	for err, status := range map[error]int{
		pageservice.ErrClosed: 503, context.DeadlineExceeded: 503, errors.New("a bug"): 500, pageservice.ErrInvalid: 400, pageservice.ErrUnknownRank: 404,
	} {
		if got := s.server.StatusInPool(err); got != status {
			t.Errorf("%v: %d", err, got)
		}
	}
}

// TestProbe: readiness probes the disk under the index, but not for every client.
func TestProbe(t *testing.T) {
	var probes atomic.Int64
	s := start(t, httpserver.Options{Probe: func() error { probes.Add(1); return errors.New("no space left") }}, pageservice.Options{})
	for range 10 {
		if status, answer := s.do("GET", "/readyz", ""); status != 503 || !strings.Contains(answer, "no space left") {
			t.Errorf("%d %s", status, answer)
		}
	}
	if n := probes.Load(); n > 3 {
		t.Errorf("probed the disk %d times", n)
	}
}

// TestProbesAtOnce: while a probe runs, other clients get the outcome of the last one, until
// the probe has taken too long.
func TestProbesAtOnce(t *testing.T) {
	t.Parallel()
	leave, entered := make(chan struct{}), make(chan struct{}, 1)
	s := start(t, httpserver.Options{Probe: func() error { entered <- struct{}{}; <-leave; return nil }}, pageservice.Options{})
	ready := func() int {
		status, _ := s.do("GET", "/readyz", "")
		return status
	}
	first := make(chan int)
	go func() { first <- ready() }()
	<-entered
	for range 20 {
		if status := ready(); status != 200 {
			t.Fatalf("while a probe runs: %d", status)
		}
	}
	if status := <-first; status != 503 {
		t.Errorf("the disk hangs: %d", status)
	}
	if status := ready(); status != 503 {
		t.Errorf("the disk hangs still: %d", status)
	}
	close(leave)
	soon(t, "readiness", func() bool { return ready() == 200 })
}

// TestMonitorsAreCheap: monitors take hardly any time of the service.
func TestMonitorsAreCheap(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	var stats atomic.Int64
	s.server.OnStat(func() { stats.Add(1) })
	s.ok("/0/initialize", `{"num_pages":4}`)
	c := httpserver.NewClient(s.url, "", patience)
	begin, before := time.Now(), stats.Load()
	for range 50 {
		s.do("GET", "/readyz", "")
	}
	if n := stats.Load() - before; n != 0 {
		t.Errorf("readyz queried the state of all spaces %d times", n)
	}
	for range 50 {
		w, err := s.http.Get(s.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if _, err := c.Evict(t.Context(), pageservice.Space{Set: "sglang/kv/0"}, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n, most := stats.Load()-before, int64(time.Since(begin)/time.Second)+2; n > most {
		t.Errorf("the state of all spaces was queried %d times, more than %d", n, most)
	}
}

// TestReservingProves: granting a page proves that the disk takes writes.
func TestReservingProves(t *testing.T) {
	s, disk := startBroken(t, httpserver.Options{})
	s.ok("/0/initialize", `{"num_pages":1}`)
	failedChange := func() {
		disk.failing.Store(true)
		s.want("/0/clear", `{}`, 503, `{"detail":"the page index cannot write: input/output error"}`)
		disk.failing.Store(false)
	}
	failedChange()
	for _, status := range []int{503, 200} {
		if got, answer := s.do("GET", "/readyz", ""); got != status {
			t.Errorf("%d %s, want %d", got, answer, status)
		}
		s.ok("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""]]}`)
	}
	failedChange()
	s.ok("/0/reserve_and_allocate_page_indices", `{"keys":[["no room",""]]}`)
	if got, _ := s.do("GET", "/readyz", ""); got != 503 {
		t.Errorf("a key without a page proves nothing: %d", got)
	}
}

// TestOddNamespaces: no name of a namespace collides with a special label.
func TestOddNamespaces(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	for _, prefix := range []string{"", "/ns/default", "/ns/other"} {
		s.ok(prefix+"/0/initialize", `{"num_pages":4}`)
	}
	w, err := s.http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, _ := io.ReadAll(w.Body)
	if n := strings.Count(string(b), "kv3fs_pages_keys{"); w.StatusCode != 200 || n != 3 {
		t.Errorf("%d, %d spaces\n%s", w.StatusCode, n, b)
	}
}

// TestToken: with a token, only the health routes work without it.
func TestToken(t *testing.T) {
	s := start(t, httpserver.Options{Token: "secret"}, pageservice.Options{})
	ask := func(method, path, authorization string) (int, http.Header) {
		r, _ := http.NewRequest(method, s.url+path, strings.NewReader(`{"keys":[]}`))
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		w, err := s.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		return w.StatusCode, w.Header
	}
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("anybody:"+password))
	}
	for _, c := range []struct {
		authorization string
		status        int
	}{
		{"Bearer secret", 200}, {"bearer secret", 200}, {"BEARER secret", 200}, {basic("secret"), 200},
		{"", 401}, {"Bearer", 401}, {"Bearer ", 401}, {"Bearer secre", 401}, {"Bearer secret ", 200}, {"Bearer secretsecret", 401},
		{"secret", 401}, {basic(""), 401}, {basic("no"), 401}, {"Basic secret", 401},
	} {
		status, header := ask("POST", "/keys/batch_exists", c.authorization)
		if status != c.status || status == 401 && header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: %d %v", c.authorization, status, header)
		}
	}
	for path, status := range map[string]int{"/metrics": 401, "/admin/v1/stat": 401, "/anything": 401, "/healthz": 200, "/readyz": 200} {
		if got, _ := ask("GET", path, ""); got != status {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// What README asks the page service for with curl is there.
func TestReadmeAsks(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile(`(?m)^curl http://127\.0\.0\.1:18000(\S*)`).FindAllStringSubmatch(string(text), -1)
	if len(paths) == 0 {
		t.Error("README asks for nothing")
	}
	for _, path := range paths {
		if status, answer := s.do(http.MethodGet, path[1], ""); status != 200 {
			t.Errorf("%s: %d %s", path[1], status, answer)
		}
	}
}

// TestNamespaces: prefixes and bound listeners reach the same namespaces, and no two
// namespaces share a key.
func TestNamespaces(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	bound := startOn(t, s.index, httpserver.Options{}, "two")
	for _, at := range []struct {
		s      *service
		prefix string
	}{{s, ""}, {s, "/ns/one"}, {bound, ""}} {
		at.s.ok(at.prefix+"/rank/0/initialize", `{"num_pages":4}`)
		at.s.want(at.prefix+"/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
		at.s.want(at.prefix+"/keys/batch_allocate", `{"rank":0,"keys":[["K",""]]}`, 200, `{"rank":0,"results":[["K",0]]}`)
		at.s.ok(at.prefix+"/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`)
	}
	s.want("/ns/two/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	s.want("/ns/two/clear", ``, 204, "")
	s.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[true]}`)
	bound.want("/keys/batch_exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	bound.want("/ns/one/keys/batch_exists", `{"keys":["K"]}`, 404, `{"detail":"Not Found"}`)
	for _, name := range []string{"a+b", "é", strings.Repeat("n", 65), "a%00", "a%20"} {
		s.want("/ns/"+name+"/clear", ``, 404, `{"detail":"Not Found"}`)
	}
	s.want("/ns/"+strings.Repeat("n", 64)+"/keys/batch_exists", `{"keys":[]}`, 200, `{"exists":[]}`)
}

// TestBoundAddressOperatesOnlyItsNamespace: through an address that is bound to a namespace,
// the command line neither sees nor changes another one.
func TestBoundAddressOperatesOnlyItsNamespace(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	bound := startOn(t, s.index, httpserver.Options{}, "two")
	s.ok("/rank/0/initialize", `{"num_pages":4}`)
	s.ok("/ns/second/rank/0/initialize", `{"num_pages":4}`)
	bound.ok("/rank/0/initialize", `{"num_pages":4}`)
	c := httpserver.NewClient(bound.url, "", patience)
	if spaces, err := c.Stat(t.Context()); err != nil || len(spaces) != 1 || spaces[0].Space.Namespace != "two" {
		t.Errorf("%+v, %v", spaces, err)
	}
	for _, namespace := range []string{"", "second"} {
		space := pageservice.Space{Namespace: namespace, Set: pageservice.VLLM}
		_, listed := c.List(t.Context(), space, "", 1)
		_, evicted := c.Evict(t.Context(), space, 1)
		for do, err := range map[string]error{"clear": c.Clear(t.Context(), space), "forget": c.Forget(t.Context(), space, 0), "list": listed, "evict": evicted} {
			if err == nil || !strings.Contains(err.Error(), `serves only namespace "two"`) {
				t.Errorf("%s of %q: %v", do, namespace, err)
			}
		}
	}
	if err := c.Clear(t.Context(), pageservice.Space{Namespace: "two", Set: pageservice.VLLM}); err != nil {
		t.Error(err)
	}
}

// TestEventsOfManySets: the counters of sets beyond those with labels are counted under
// (other), none is lost, and none decreases.
func TestEventsOfManySets(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	const sets = 70
	misses := regexp.MustCompile(`(?m)^kv3fs_pages_events_total\{event="misses",namespace="([^"]*)".* (\d+)$`)
	total := func() (all, other int) {
		w, err := s.http.Get(s.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		text, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range misses.FindAllStringSubmatch(string(text), -1) {
			n, _ := strconv.Atoi(m[2])
			all += n
			if m[1] == "(other)" {
				other = n
			}
		}
		return all, other
	}
	for round := range 2 {
		for i := range sets {
			at := fmt.Sprintf("/ns/n%02d", i)
			s.ok(at+"/rank/0/initialize", `{"num_pages":4}`)
			s.ok(at+"/keys/get_locations", `{"rank":0,"keys":["none"]}`)
		}
		want := sets * (round + 1)
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			all, other := total()
			if all == want && other == (sets-64)*(round+1) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d misses, %d of them under (other); want %d", all, other, want)
			}
		}
	}
}

// TestMetrics: the metrics are well-formed and correct, and do not grow with the namespaces
// that clients invent.
func TestMetrics(t *testing.T) {
	s := withSomething(t, httpserver.Options{})
	for i := range 200 {
		s.ok("/ns/unknown"+string(rune('a'+i%26))+jsonText(i)+"/keys/batch_exists", `{"keys":["K"]}`)
	}
	s.ok("/ns/model/rank/0/initialize", `{"num_pages":4}`)
	s.post("/keys/batch_exists", `[]`)
	w, err := s.http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string, want map[string]string) (sum float64) {
		for _, m := range families[name].GetMetric() {
			match := 0
			for _, l := range m.GetLabel() {
				if want[l.GetName()] == l.GetValue() {
					match++
				}
			}
			if match == len(want) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
	for _, c := range []struct {
		name string
		with map[string]string
		want float64
	}{
		{"kv3fs_pages_requests_total", map[string]string{"route": "vllm/batch_exists", "namespace": "(other)", "code": "200"}, 200},
		{"kv3fs_pages_request_seconds", map[string]string{"route": "vllm/batch_exists", "namespace": "(other)"}, 200},
		{"kv3fs_pages_requests_total", map[string]string{"route": "vllm/batch_exists", "namespace": "(default)", "code": "500"}, 1},
		{"kv3fs_pages_requests_total", map[string]string{"namespace": "model"}, 1},
		{"kv3fs_pages_pages", map[string]string{"namespace": "(default)", "set": "vllm", "state": "free"}, 5},
		{"kv3fs_pages_pages", map[string]string{"namespace": "(default)", "set": "vllm", "state": "reserved"}, 2},
		{"kv3fs_pages_pages", map[string]string{"namespace": "(default)", "set": "sglang/kv/0", "state": "keyed"}, 1},
		{"kv3fs_pages_keys", map[string]string{"namespace": "(default)", "set": "vllm"}, 1},
		{"kv3fs_pages_events_total", map[string]string{"namespace": "(default)", "set": "vllm", "event": "confirmed"}, 1},
	} {
		if got := value(c.name, c.with); got != c.want {
			t.Errorf("%s%v = %v, want %v", c.name, c.with, got, c.want)
		}
	}
	for name, f := range families {
		if len(f.GetHelp()) < 20 {
			t.Errorf("%s: help %q", name, f.GetHelp())
		}
		if n := len(f.GetMetric()); n > 100 {
			t.Errorf("%s has %d series", name, n)
		}
	}
}

// TestManySets: sets beyond those with labels of their own are added up.
func TestManySets(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	for rank := range 100 {
		s.ok("/"+jsonText(rank)+"/initialize", `{"num_pages":10}`)
	}
	status, text := 0, ""
	w, err := s.http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(w.Body)
	w.Body.Close()
	status, text = w.StatusCode, string(b)
	if status != 200 || !strings.Contains(text, `kv3fs_pages_pages{namespace="(other)",set="(other)",state="free"} 360`) || !strings.Contains(text, `events_total{event="hits",namespace="(other)",set="(other)"} 0`) {
		t.Errorf("%d\n%s", status, text)
	}
}

// What operators change is logged with who they are, and what fails as well; what they look at is not.
func TestAdminIsAudited(t *testing.T) {
	var out strings.Builder
	s := withSomething(t, httpserver.Options{Audit: slog.New(slog.NewTextHandler(&lockedWriter{w: &out}, nil))})
	s.ok("/rank/7/initialize", `{"num_pages":4}`)
	s.ok("/admin/v1/list", `{"space":{"set":"vllm"},"limit":10}`)
	s.ok("/admin/v1/evict", `{"space":{"set":"vllm"},"keys":10}`) // the key is not complete now
	s.ok("/admin/v1/forget", `{"space":{"set":"vllm"},"rank":7}`)
	s.want("/admin/v1/forget", `{"space":{"set":"vllm"},"rank":7}`, 404, `{"detail":"there is no rank 7 of set \"vllm\" in namespace \"(default)\""}`)
	s.ok("/admin/v1/clear", `{"space":{"set":"vllm"}}`)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		`call="pages evict" namespace="" set=vllm keys=0 client=127.0.0.1 address=127.0.0.1:`, `call="pages forget-rank" namespace="" set=vllm rank=7 client=`,
		`rank=7 client=127.0.0.1`, `call="pages clear" namespace="" set=vllm client=127.0.0.1 address=127.0.0.1:`,
	} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d lacks %s:\n%s", i, want, out.String())
		}
	}
	if len(lines) != 4 || !strings.Contains(lines[2], "err=") {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
}

// TestAdmin: the command line's routes, through its client.
func TestAdmin(t *testing.T) {
	s := withSomething(t, httpserver.Options{Token: ""})
	c := httpserver.NewClient(s.url, "", patience)
	ctx := t.Context()
	spaces, err := c.Stat(ctx)
	if err != nil || len(spaces) != 2 || spaces[1].Space.Set != "vllm" || spaces[1].Keys != 1 {
		t.Fatalf("%+v, %v", spaces, err)
	}
	v := spaces[1].Space
	entries, err := c.List(ctx, v, "", 10)
	if err != nil || len(entries) != 1 || entries[0].Key != "K" || entries[0].Pages[0] != 0 || !entries[0].Complete {
		t.Errorf("%+v, %v", entries, err)
	}
	if entries, err = c.List(ctx, v, "K", 10); err != nil || entries == nil || len(entries) != 0 {
		t.Errorf("%+v, %v", entries, err)
	}
	if n, err := c.Evict(ctx, v, 10); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if err := c.Clear(ctx, spaces[0].Space); err != nil {
		t.Error(err)
	}
	s.want("/0/exists", `{"keys":["K"]}`, 200, `{"exists":[false]}`)
	s.ok("/rank/7/initialize", `{"num_pages":4}`)
	if err := c.Forget(ctx, v, 7); err != nil {
		t.Error(err)
	}
	if spaces, err := c.Stat(ctx); err != nil || len(spaces[1].Ranks) != 1 {
		t.Errorf("a forgotten rank: %+v, %v", spaces, err)
	}
	if err := c.Forget(ctx, v, 7); err == nil || !strings.Contains(err.Error(), "no rank 7") {
		t.Errorf("forgotten twice: %v", err)
	}
	s.want("/admin/v1/forget", `{"space":{"set":"vllm"}}`, 400, `{"detail":"rank is missing"}`)
	for _, limit := range []int{0, -1, 10001} {
		if _, err := c.List(ctx, v, "", limit); err == nil {
			t.Errorf("limit %d is fine", limit)
		}
	}
	if _, err := c.Evict(ctx, v, 0); err == nil {
		t.Error("evicting 0 keys is fine")
	}
	if err := c.Clear(ctx, pageservice.Space{Set: "vlm"}); err == nil || !strings.Contains(err.Error(), `"vlm"`) {
		t.Errorf("a set that is not there: %v", err)
	}
	for _, path := range []string{"/admin/v1/", "/admin/v1/x", "/admin/v1/stat/"} {
		s.want(path, "", 404, `{"detail":"Not Found"}`)
	}
	for _, c := range [][2]string{{"POST", "stat"}, {"GET", "clear"}, {"GET", "evict"}, {"PUT", "list"}} {
		if status, _ := s.do(c[0], "/admin/v1/"+c[1], ""); status != 405 {
			t.Errorf("%s %s: %d", c[0], c[1], status)
		}
	}
	for _, body := range []string{"x", `{"spaec":{}}`, `{"keys":"1"}`, "[" + strings.Repeat(" ", 1<<20)} {
		if status, _ := s.post("/admin/v1/evict", body); status != 400 {
			t.Errorf("%s: %d", short(body), status)
		}
	}
}
