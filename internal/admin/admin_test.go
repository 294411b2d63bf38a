package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

// patience is how long tests wait for what takes no time on an idle machine.
const patience = time.Minute

// open returns a server of a real keeper over a new directory, and its client.
func open(t *testing.T, dir string, files map[string]int) (*Server, *Client, *keeper.Keeper) {
	t.Helper()
	data := t.TempDir()
	for name, size := range files {
		at := filepath.Join(data, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, make([]byte, size), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := keeper.New(keeper.Options{Dir: data, StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	if err := k.Inventory().Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, c := serveFor(t, dir, k)
	return s, c, k
}

func serveFor(t *testing.T, dir string, k Keeper) (*Server, *Client) {
	t.Helper()
	s := NewServer(dir, k, nil, slog.New(slog.DiscardHandler))
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return s, c
}

// Every call gives what the keeper says, with names as they are.
func TestCalls(t *testing.T) {
	const block = "models/meta-llama-SEP-Llama-3-8B@1@0@1f@half.data"
	_, c, k := open(t, t.TempDir(), map[string]int{block: 5000, "odd/new\nline\xff": 100, "odd/b[a]d*": 1})
	ctx := t.Context()
	state, err := c.State(ctx)
	if want := k.State(); err != nil || state.Files != 3 || state.UsedBytes != want.UsedBytes || state.Dir != want.Dir || !state.Scanned {
		t.Errorf("%+v, %v; want %+v", state, err, want)
	}
	var dirs []keeper.Usage
	err = c.Usage(ctx, ".", 1, func(u keeper.Usage) error {
		dirs = append(dirs, u)
		return nil
	})
	if err != nil || len(dirs) != 3 || dirs[0].Path != "." || dirs[0].Files != 3 || dirs[1].Path != "models" || dirs[2].Path != "odd" || dirs[2].Files != 2 {
		t.Errorf("%+v, %v", dirs, err)
	}
	groups, err := c.Groups(ctx, ".")
	if err != nil || len(groups) != 2 || !slices.ContainsFunc(groups, func(g keeper.Group) bool {
		return g.Owner == "lmcache" && g.Model == "meta-llama/Llama-3-8B" && g.Files == 1 && g.Bytes >= 5000
	}) {
		t.Errorf("%+v, %v", groups, err)
	}
	list := func(q keeper.Query) (paths []string) {
		t.Helper()
		if err := c.List(ctx, q, func(e keeper.Listed) error {
			paths = append(paths, e.Path)
			return nil
		}); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
		slices.Sort(paths)
		return paths
	}
	most := 0
	for _, l := range []struct {
		q    keeper.Query
		want []string
	}{
		{keeper.Query{}, []string{block, "odd/b[a]d*", "odd/new\nline\xff"}},
		{keeper.Query{Selection: keeper.Selection{Filter: keeper.Filter{Origin: keeper.Origin{Owner: "lmcache"}, UsesAtMost: &most}}}, []string{block}},
		{keeper.Query{Selection: keeper.Selection{Filter: keeper.Filter{Origin: keeper.Origin{Model: "meta-llama/Llama-3-8B"}}}}, []string{block}},
		{keeper.Query{Selection: keeper.Selection{Patterns: []string{"odd/b[a]d*"}}}, []string{"odd/b[a]d*"}}, // a name that looks like a pattern
		{keeper.Query{Selection: keeper.Selection{Patterns: []string{"odd/new\nline\xff", "odd/*\xff"}}}, []string{"odd/new\nline\xff"}},
		{keeper.Query{Selection: keeper.Selection{Patterns: []string{"*/*.data", "odd/[nm]*"}}}, []string{block, "odd/new\nline\xff"}},
		{keeper.Query{Sort: "bytes", Most: 1}, []string{block}},
		{keeper.Query{Selection: keeper.Selection{Filter: keeper.Filter{UsesAtLeast: 1}}}, nil},
		{keeper.Query{Selection: keeper.Selection{Filter: keeper.Filter{UnusedAtLeast: time.Hour}}}, nil},
	} {
		if got := list(l.q); !slices.Equal(got, l.want) {
			t.Errorf("%+v: %q; want %q", l.q, got, l.want)
		}
	}
	if err := c.List(ctx, keeper.Query{Selection: keeper.Selection{Filter: keeper.Filter{Origin: keeper.Origin{Owner: "nobody"}}}}, nil); err == nil || !strings.Contains(err.Error(), `no owner "nobody"`) {
		t.Errorf("an owner that does not exist: %v", err)
	}
	about, err := c.Describe(ctx, block)
	if err != nil || about.File == nil || about.File.Owner != "lmcache" || about.File.SizeBytes != 5000 || about.File.MayGo || !strings.Contains(about.File.Why, "grace period") {
		t.Errorf("%+v, %v", about, err)
	}
	if about, err := c.Describe(ctx, "odd"); err != nil || about.Directory == nil || about.Directory.Files != 2 {
		t.Errorf("%+v, %v", about, err)
	}
	if _, err := c.Describe(ctx, "odd/nothing"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if err := errors.Join(c.SetQuota(ctx, "odd", 2<<20), c.Pin(ctx, []string{"odd/b[a]d*", "models/*"}, keeper.Origin{}), c.SetTTL(ctx, "odd/new\nline\xff", time.Hour)); err != nil {
		t.Error(err)
	}
	if q, err := c.Quotas(ctx); err != nil || len(q) != 1 || q[0].Path != "odd" || q[0].Bytes != 2<<20 || q[0].Files != 2 {
		t.Errorf("%+v, %v", q, err)
	}
	if p, err := c.Pins(ctx); err != nil || !slices.Equal(p, []keeper.Pin{{Pattern: `odd/b\[a]d\*`}, {Pattern: "models/*"}}) {
		t.Errorf("%q, %v", p, err)
	}
	if p, err := c.TTLs(ctx); err != nil || len(p) != 1 || p[0].Pattern != "odd/new\nline\xff" || p[0].Unused != time.Hour {
		t.Errorf("%q, %v", p, err)
	}
	if got := list(keeper.Query{Pinned: true}); !slices.Equal(got, []string{block, "odd/b[a]d*"}) {
		t.Errorf("pinned: %q", got)
	}
	var stays []string
	err = c.Evict(ctx, keeper.Selection{Patterns: []string{"."}}, false, func(r keeper.Removal) error {
		stays = append(stays, r.Stays)
		return nil
	})
	if slices.Sort(stays); err != nil || len(stays) != 3 || !strings.Contains(strings.Join(stays, "; "), `pinned by "models/*"`) || slices.Contains(stays, "") {
		t.Errorf("%q, %v", stays, err)
	}
	if err := errors.Join(c.Unpin(ctx, []string{"odd/b[a]d*", "models/*"}, keeper.Origin{}), c.SetTTL(ctx, "odd/new\nline\xff", 0), c.RemoveQuota(ctx, "odd")); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"unpin": c.Unpin(ctx, []string{"models/*"}, keeper.Origin{}), "ttl": c.SetTTL(ctx, "x", 0), "quota": c.RemoveQuota(ctx, "odd"), "find": c.SetQuota(ctx, "nothing", 1<<30),
	} {
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s of what is not there: %v", what, err)
		}
	}
}

// A socket of a dead daemon is replaced, its path may be longer than that of a socket can be, and
// what somebody left half-made is in nobody's way.
func TestSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), []string{dir}, patience); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("without a socket: %v", err)
	}
	dead, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	if err := os.WriteFile(filepath.Join(dir, newName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), []string{dir, filepath.Join(dir, "none")}, patience); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("a dead daemon's: %v", err)
	}
	s := NewServer(dir, nil, errors.New("give --capacity"), slog.New(slog.DiscardHandler))
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, SocketName)); err != nil || fi.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	c, err := Dial(t.Context(), []string{filepath.Join(dir, "none"), dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.State(t.Context()); err == nil || err.Error() != "give --capacity" {
		t.Errorf("without a keeper: %v", err)
	}
	if err := nothing(t.Context(), c, "teleport", none{}); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("a call that there is not: %v", err)
	}
	s.Close()
	if _, err := os.Lstat(filepath.Join(dir, SocketName)); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	NewServer(dir, nil, nil, slog.New(slog.DiscardHandler)).Close() // without a Start
}

// connect reports what another user gets from a socket that everybody may open.
func connect(s *hostile.Self) error {
	var path string
	if err := s.Args(&path); err != nil {
		return err
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("POST /v1/state HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"value\":{}}")) // it may be closed
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(conn)
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		err = nil
	}
	return errors.Join(err, s.Report(string(got)))
}

// Another user gets no answer, even where the modes of socket and directories let it connect.
func TestOtherUser(t *testing.T) {
	daemontest.NeedRoot(t)
	dir := daemontest.NewDir(t)
	_, c, _ := open(t, dir, nil)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, SocketName), 0o777)); err != nil {
		t.Fatal(err)
	}
	var got string
	hostile.Run(t, hostile.NewUser(t), "connect", filepath.Join(dir, SocketName), &got)
	if got != "" {
		t.Errorf("another user got %q", got)
	}
	if _, err := c.State(t.Context()); err != nil {
		t.Errorf("and then nobody does: %v", err)
	}
}

// endless is a keeper whose listing has no end.
type endless struct {
	Keeper
	began, ended chan struct{}
}

func (e *endless) List(_ context.Context, _ keeper.Query, fn func(keeper.Listed) error) error {
	close(e.began)
	defer close(e.ended)
	for n := 0; ; n++ {
		if err := fn(keeper.Listed{Path: fmt.Sprintf("%0100d", n)}); err != nil {
			return err
		}
	}
}

func (e *endless) State() keeper.State { return keeper.State{Files: 7} }

// A client that does not read costs only itself: others are answered, and its call ends.
func TestClientThatDoesNotRead(t *testing.T) {
	dir := t.TempDir()
	e := &endless{began: make(chan struct{}), ended: make(chan struct{})}
	s := NewServer(dir, e, nil, slog.New(slog.DiscardHandler))
	s.StallTime = time.Second // others may need some of it, on a busy machine
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("POST /v1/list HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"value\":{}}")); err != nil {
		t.Fatal(err)
	}
	<-e.began
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	if state, err := c.State(t.Context()); err != nil || state.Files != 7 {
		t.Errorf("meanwhile: %+v, %v", state, err)
	}
	awaitClosed(t, e.ended, "the end of a call whose client does not read")
}

// The call of a client that has gone ends, and so does each when the daemon stops.
func TestClientThatGoes(t *testing.T) {
	for _, what := range []string{"it goes", "the daemon stops"} {
		dir := t.TempDir()
		e := &endless{began: make(chan struct{}), ended: make(chan struct{})}
		s, c := serveFor(t, dir, e)
		ctx, cancel := context.WithCancel(t.Context())
		enough := errors.New("enough")
		n := 0
		err := c.List(ctx, keeper.Query{}, func(keeper.Listed) error {
			switch n++; {
			case n == 10 && what == "it goes":
				return enough
			case n == 10:
				go s.http.Close()
			}
			return nil
		})
		cancel()
		if what == "it goes" && err != enough || what != "it goes" && (err == nil || !strings.Contains(err.Error(), "cut")) {
			t.Errorf("%s: %v", what, err)
		}
		awaitClosed(t, e.ended, what)
	}
}

func awaitClosed(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
}

// slow is a keeper that says nothing until it is told to go on.
type slow struct {
	Keeper
	goOn chan struct{}
}

func (s *slow) List(ctx context.Context, _ keeper.Query, fn func(keeper.Listed) error) error {
	select {
	case <-s.goOn:
		return fn(keeper.Listed{Path: "last"})
	case <-ctx.Done():
		return ctx.Err()
	}
}

// More calls at once than there may be are refused, not queued; those of others go on.
func TestManyCalls(t *testing.T) {
	dir := t.TempDir()
	k := &slow{goOn: make(chan struct{})}
	_, c := serveFor(t, dir, k)
	const more = mostCalls + 1
	results := make(chan error, more)
	for range more {
		go func() {
			_, err := collect[keeper.Listed](t.Context(), c, "list", keeper.Query{})
			results <- err
		}()
	}
	if err := <-results; err == nil || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("the first one that ended: %v", err)
	}
	close(k.goOn)
	for range more - 1 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// Connections beyond the bound are closed, and there is room again once others have gone.
func TestManyConnections(t *testing.T) {
	dir := t.TempDir()
	s := NewServer(dir, &endless{}, nil, slog.New(slog.DiscardHandler))
	s.http.ReadHeaderTimeout, s.http.ReadTimeout = patience, patience // of those that say nothing
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range mostConnections {
		c, err := dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	c := newClient(dir, patience)
	if state, err := c.State(t.Context()); err == nil {
		t.Errorf("one more was answered: %+v", state)
	}
	all[0].Close()
	deadline := time.Now().Add(patience)
	for {
		_, err := c.State(t.Context())
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// What is no request is refused, with the reason.
func TestBadRequests(t *testing.T) {
	dir := t.TempDir()
	_, c, _ := open(t, dir, nil)
	for _, r := range []struct{ method, path, body, says string }{
		{http.MethodPost, "state", "", "no message"},
		{http.MethodPost, "state", "[]", "no message"},
		{http.MethodPost, "state", `{"value":`, "no message"},
		{http.MethodPost, "usage", `{}`, "without a value"},
		{http.MethodPost, "usage", `{"value":[]}`, "cannot unmarshal"},
		{http.MethodPost, "usage", `{"value":{"path":"x"},"not_utf8":{"/nothing":"AA=="}}`, "there is no text"},
		{http.MethodPost, "usage", `{"value":{"path":"` + strings.Repeat("x", mostBytes) + `"}}`, "too large"},
		{http.MethodPost, "usage", `{"value":{"path":"../x"}}`, "invalid argument"},
		{http.MethodPost, "usage", `{"value":{"path":"/etc"}}`, "invalid argument"},
		{http.MethodPost, "usage", `{"value":{"path":"a\u0000b"}}`, "invalid argument"},
		{http.MethodPost, "evict", `{"value":{"patterns":["/etc"]}}`, "relative to the data directory"},
		{http.MethodPost, "evict", `{"value":{"patterns":["[","../x"]}}`, "syntax error"},
		{http.MethodPost, "evict", `{"value":{"patterns":["x"],"younger_than":5}}`, "of another version than this command"},
		{http.MethodPost, "list", `{"value":{"sort":"x"}}`, "no order"},
		{http.MethodPost, "list", `{"value":{"sort":"bytes","most":1000000000}}`, "at most"},
		{http.MethodGet, "state", "", "Method Not Allowed"},
		{http.MethodPost, "nothing", "", "not found"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), r.method, "http://x/v1/"+r.path, strings.NewReader(r.body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.http.Do(request)
		if err != nil {
			t.Errorf("%s %.100s: %v", r.path, r.body, err)
			continue
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !strings.Contains(string(got), r.says) {
			t.Errorf("%s %.100s: %q, %v; want %q", r.path, r.body, got, err, r.says)
		}
	}
}

// A message is decoded or refused, whatever it is, and what was encoded is the same again.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"value":{"path":"a","patterns":["x"]},"not_utf8":{"/path":"/w=="}}`))
	f.Add([]byte(`{"value":{"patterns":["x"]},"not_utf8":{"/patterns/0":"/w=="}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		var q keeper.Query
		if json.Unmarshal(b, &m) != nil || m.decode(&q) != nil {
			return
		}
		text, err := encode(q)
		if err != nil {
			t.Fatal(err)
		}
		var again keeper.Query
		var second message
		if err := errors.Join(json.Unmarshal(text, &second), second.decode(&again)); err != nil || !slices.Equal(q.Patterns, again.Patterns) || q.Owner != again.Owner {
			t.Errorf("%q is %q, %v", q.Patterns, again.Patterns, err)
		}
	})
}

// The end of a server leaves the socket of its successor.
func TestSuccessor(t *testing.T) {
	dir := t.TempDir()
	first := NewServer(dir, &endless{}, nil, slog.New(slog.DiscardHandler))
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	serveFor(t, dir, &endless{})
	first.Close()
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	if state, err := c.State(t.Context()); err != nil || state.Files != 7 {
		t.Errorf("%+v, %v", state, err)
	}
}
