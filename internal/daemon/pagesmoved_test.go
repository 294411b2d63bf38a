package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// mover is a data directory whose page index is kept here and there in turn.
type mover struct {
	*testing.T
	data  string
	hosts map[string]pagesPlace

	etcdStart time.Duration
}

func newMover(t *testing.T, shared bool) *mover {
	t.Helper()
	m := &mover{T: t, data: t.TempDir(), hosts: map[string]pagesPlace{}, etcdStart: time.Minute}
	for _, name := range []string{"a", "b"} {
		at := sharedPlace(t, m.data, name)
		at.shared = shared
		m.hosts[name] = at
	}
	return m
}

// try starts the page service of a host.
func (m *mover) try(name, store string, startOver bool) (*sharedHost, error) {
	m.Helper()
	return m.tryWith(name, store, startOver, pageservice.Options{})
}

func (m *mover) tryWith(name, store string, startOver bool, times pageservice.Options) (*sharedHost, error) {
	m.Helper()
	p := Pages{Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Drain: patience, StartOver: startOver, Index: times, Log: slog.New(slog.DiscardHandler), etcdStart: m.etcdStart}
	if store != httpserver.Embedded {
		config, err := cluster.ParseStore(store)
		if err != nil {
			m.Fatal(err)
		}
		p.Cluster = &PagesCluster{Store: EtcdStore{config}, Listen: "127.0.0.1:0", Token: "of hosts"}
	}
	files, err := newPageFiles(m.data, nil, []PageDir{{Namespace: "of no engine", Dir: "none"}}, p.Log)
	if err != nil {
		m.Fatal(err)
	}
	s, err := startPages(m.Context(), m.hosts[name], p, files)
	if err != nil {
		return nil, err
	}
	return &sharedHost{pageService: s, files: files, url: "http://" + s.addresses()[0].Where}, nil
}

func (m *mover) start(name, store string, startOver bool) *sharedHost {
	m.Helper()
	h, err := m.try(name, store, startOver)
	if err != nil {
		m.Fatal(err)
	}
	return h
}

// ask waits until a request is answered.
func (m *mover) ask(h *sharedHost, path, body string) string {
	m.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		status, answer := post(m.T, h.url+path, body)
		switch {
		case status/100 == 2:
			return answer
		case time.Now().After(deadline):
			m.Fatalf("%s: still %d %s", path, status, answer)
		}
	}
}

// has checks whether a host's page service knows of a key.
func (m *mover) has(h *sharedHost, key string, want bool) {
	m.Helper()
	m.ask(h, "/0/initialize", `{"num_pages":1}`) // engines do that when they start
	if got := m.ask(h, "/0/exists", fmt.Sprintf(`{"keys":[%q]}`, key)); got != fmt.Sprintf(`{"exists":[%v]}`, want) {
		m.Errorf("%s: %s, want %v", key, got, want)
	}
}

// save stores a key in page 0 of a file of one page. On a busy machine the service may find that it was not run for a while: then it saves nothing.
func (m *mover) save(h *sharedHost, key string) {
	m.Helper()
	m.ask(h, "/0/initialize", `{"num_pages":1}`)
	exists := ""
	for deadline := time.Now().Add(patience); exists != `{"exists":[true]}`; time.Sleep(time.Millisecond) {
		if got := m.ask(h, "/0/reserve_and_allocate_page_indices", fmt.Sprintf(`{"keys":[[%q,""]]}`, key)); got == `{"indices":[[false,0]]}` {
			m.ask(h, "/0/confirm_write", fmt.Sprintf(`{"written_keys_to_confirm":[[%q,0]]}`, key))
		} else if time.Now().After(deadline) {
			m.Fatalf("a page for %s: %s", key, got)
		}
		exists = m.ask(h, "/0/exists", fmt.Sprintf(`{"keys":[%q]}`, key))
	}
}

// cautious checks that a host's page service gives no page out, since engines may be using what another one has given them.
func (m *mover) cautious(h *sharedHost) {
	m.Helper()
	if got := m.ask(h, "/0/reserve_and_allocate_page_indices", `{"keys":[["new",""]]}`); got != `{"indices":[[false,-1]]}` {
		m.Errorf("%s: a page that engines of another index may be using", got)
	}
}

// TestMovedIndex: whichever way the page index of a directory moves, one that was in use before knows none of its keys when it comes
// back, and none gives out pages that engines may still have from another. Nobody has to remove a file for that.
func TestMovedIndex(t *testing.T) {
	members := etcd.Start(t, etcd.Options{Members: 1})
	for _, shared := range []bool{true, false} {
		at := fmt.Sprintf("etcd://%s/kv3fs/%v/", members.Endpoints()[0], shared)
		for what, stores := range map[string][2]string{
			"embedded, etcd, embedded": {httpserver.Embedded, at + "first"},
			"etcd, embedded, etcd":     {at + "second", httpserver.Embedded},
			"two prefixes":             {at + "third", at + "fourth"},
		} {
			t.Run(fmt.Sprintf("%s, shared %v", what, shared), func(t *testing.T) {
				t.Parallel()
				m := newMover(t, shared)
				h := m.start("a", stores[0], false)
				m.save(h, "K")
				h.end(t)
				for turn, store := range []string{stores[1], stores[0], stores[1]} {
					before := stores[turn%2]
					if before != httpserver.Embedded {
						if _, err := m.try("a", store, false); err == nil || !strings.Contains(err.Error(), before) || !strings.Contains(err.Error(), "--pages-start-over") {
							t.Fatalf("%s after %s: %v", store, before, err)
						}
					}
					h := m.start("a", store, before != httpserver.Embedded)
					m.has(h, "K", false)
					m.cautious(h)
					h.end(t)
					// What was begun anew goes on, whatever the host was told before.
					h = m.start("a", store, false)
					m.has(h, "K", false)
					h.end(t)
				}
			})
		}
	}
}

// TestCutOffWhileStarting: a host that was stopped while it started, for so long that another one has taken the page files, does not
// become their owner again, neither then nor when it starts the next time, even if its note came through last.
func TestCutOffWhileStarting(t *testing.T) {
	m := newMover(t, true)
	h := m.start("a", httpserver.Embedded, false)
	m.save(h, "K")
	h.end(t)
	const period = time.Second
	quiet := slog.New(slog.DiscardHandler)
	a, b := m.hosts["a"], m.hosts["b"]
	mine, err := takePages(t.Context(), m.data, a.me, true, period, quiet)
	if err != nil {
		t.Fatal(err)
	}
	close(mine.stop) // as if it was stopped: nobody renews it
	<-mine.done
	theirs, err := takePages(t.Context(), m.data, b.me, true, period, quiet)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(a.host, pagesDir)
	taken := pagesOwner{Format: ownerFormat, Store: httpserver.Embedded, Host: "b", Index: "that of b"}
	if err := theirs.note(taken); err != nil {
		t.Fatal(err)
	}
	next := pagesOwner{Store: httpserver.Embedded, Host: "a", Index: "that of a", Moved: true}
	if err := takeOver(mine, dir, taken, next, mine.note); !errors.Is(err, errOtherPages) {
		t.Errorf("it goes on: %v", err)
	}
	if is, err := readPagesOwner(m.data); err != nil || is != taken {
		t.Errorf("%+v, %v", is, err)
	}
	if err := (pagesOwner{Store: httpserver.Embedded, Host: "a", Index: "noted too late"}).note(m.data); err != nil {
		t.Fatal(err)
	}
	select {
	case <-theirs.over:
	case <-time.After(patience):
		t.Error("the other host did not see that its note was replaced")
	}
	mine.stop, mine.done = make(chan struct{}), make(chan struct{})
	close(mine.done)
	for _, of := range []*tenancy{mine, theirs} {
		if err := of.end(); err != nil {
			t.Error(err)
		}
	}
	h = m.start("a", httpserver.Embedded, false)
	m.has(h, "K", false)
	h.end(t)
}

// TestMovedWhileLed: a host that leads in etcd stops as soon as another index was made the one in use; an operator's wish to begin anew is refused
// while a host leads.
func TestMovedWhileLed(t *testing.T) {
	members := etcd.Start(t, etcd.Options{Members: 1})
	store := fmt.Sprintf("etcd://%s/kv3fs/led", members.Endpoints()[0])
	m := newMover(t, true)
	a := m.start("a", store, false)
	m.save(a, "K")
	c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: members.Endpoints(), Prefix: "/kv3fs/led", HostID: "onlooker"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	await(t, "it is known to lead", func() bool {
		hosts, err := c.Hosts(t.Context())
		return err == nil && len(hosts) == 1 && hosts[0].Role == cluster.RoleLeading
	})
	if _, err := m.try("b", store, true); !errors.Is(err, cluster.ErrLed) || !strings.Contains(err.Error(), "host a at") {
		t.Errorf("started over: %v", err)
	}
	m.has(a, "K", true)

	b := m.start("b", httpserver.Embedded, true)
	await(t, "the leader stops", func() bool {
		status, answer := post(t, a.url+"/0/exists", `{"keys":["K"]}`)
		return status == http.StatusServiceUnavailable && strings.Contains(answer, "is in the files of host b")
	})
	m.has(b, "K", false)
	m.cautious(b)
	b.end(t)
	a.end(t)
}

// TestDrainingHost: a host that will not lead any more, and only waits for its clients, is not one that others count on.
func TestDrainingHost(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	m := newMover(t, true)
	a := m.start("a", fmt.Sprintf("etcd://%s/kv3fs/drains", members.Endpoints()[0]), false)
	c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: members.Endpoints(), Prefix: "/kv3fs/drains", HostID: "onlooker"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	listed := func(role string) func() bool {
		return func() bool {
			hosts, err := c.Hosts(t.Context())
			return err == nil && len(hosts) == 1 && hosts[0].Role == role
		}
	}
	await(t, "it is known to lead", listed(cluster.RoleLeading))
	a.yield()
	await(t, "it is known to lead no more", listed(""))
	a.end(t)
}

// TestStartOverIsNotPutOff: an operator's wish to begin anew that cannot be fulfilled now is refused, and not done when all has changed.
func TestStartOverIsNotPutOff(t *testing.T) {
	t.Parallel()
	m := newMover(t, true)
	m.etcdStart = time.Second
	h, err := m.try("a", "etcd://127.0.0.1:1/kv3fs/away", true)
	if err == nil {
		h.end(t)
		t.Fatal("it is put off")
	}
	t.Log(err)
	slow, err := takePages(t.Context(), m.data, m.hosts["b"].me, true, pagesLeasePeriod, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	members := etcd.Start(t, etcd.Options{Members: 1})
	m.etcdStart = time.Minute
	if h, err = m.try("a", fmt.Sprintf("etcd://%s/kv3fs/taken", members.Endpoints()[0]), true); err == nil {
		h.end(t)
		t.Error("it is put off until another host has ended")
	} else if !errors.Is(err, errOtherPages) {
		t.Error(err)
	}
	if err := slow.end(); err != nil {
		t.Error(err)
	}
}

// TestFirstHostsAtOnce: a host that finds another one about to begin the index in etcd waits for it.
func TestFirstHostsAtOnce(t *testing.T) {
	members := etcd.Start(t, etcd.Options{Members: 1})
	m := newMover(t, true)
	slow, err := takePages(t.Context(), m.data, m.hosts["b"].me, true, time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a := m.start("a", fmt.Sprintf("etcd://%s/kv3fs/once", members.Endpoints()[0]), false)
	if err := slow.end(); err != nil {
		t.Error(err)
	}
	m.save(a, "K")
	a.end(t)
}

// TestNewerOwner: a record of whose index is in use that a newer kv3fs wrote is not misread, and one that cannot be read is replaced only on request.
func TestNewerOwner(t *testing.T) {
	m := newMover(t, true)
	file := filepath.Join(sharedPages(m.data), ownerName)
	if err := makeSharedPages(m.data, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"format":2,"store":"embedded","shards":[{"host":"a"}]}`)
	for _, startOver := range []bool{false, true} {
		if _, err := m.try("a", httpserver.Embedded, startOver); !errors.Is(err, cluster.ErrNewer) || !strings.Contains(err.Error(), file) {
			t.Errorf("start over %v: %v", startOver, err)
		}
	}
	write(`{"store":`)
	if _, err := m.try("a", httpserver.Embedded, false); err == nil || !strings.Contains(err.Error(), "--pages-start-over") {
		t.Errorf("half a record: %v", err)
	}
	h := m.start("a", httpserver.Embedded, true)
	m.ask(h, "/0/initialize", `{"num_pages":1}`)
	m.cautious(h)
	h.end(t)
}

// TestHandover: what a leader may still have told when it was deposed is honoured by the next one, for as long as the old one can have gone on.
func TestHandover(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	store := fmt.Sprintf("etcd://%s/kv3fs/handover", members.Endpoints()[0])
	m := newMover(t, true)
	const moment = 100 * time.Millisecond
	start := func(name string) *sharedHost {
		h, err := m.tryWith(name, store, false, pageservice.Options{Lease: moment, Hold: moment, Reserve: 50 * moment, Quarantine: moment})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a := start("a")
	m.save(a, "K")
	b := start("b")
	m.has(b, "K", true)
	began := time.Now()
	a.end(t)
	deadline := began.Add(2 * time.Minute)
	for got := ""; got != `{"indices":[[false,0]]}`; time.Sleep(time.Millisecond) { // the only page, which K has
		if time.Now().After(deadline) {
			t.Fatal(got)
		}
		got = m.ask(b, "/0/reserve_and_allocate_page_indices", `{"keys":[["new",""]]}`)
	}
	// The longest use is 5 s and a moment, and the lease of a leader 5 s.
	if took := time.Since(began); took < 10*time.Second {
		t.Errorf("the page was given away after %v", took)
	}
	b.end(t)
}

// TestReasonPasses: a host that could not lead, and now follows well, gives no reason any more.
func TestReasonPasses(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	store := fmt.Sprintf("etcd://%s/kv3fs/passes", members.Endpoints()[0])
	m := newMover(t, true)
	hosts := []*sharedHost{m.start("a", store, false), m.start("b", store, false)}
	m.save(hosts[0], "K")
	was, err := readPagesOwner(m.data)
	if err != nil {
		t.Fatal(err)
	}
	state := func(h *sharedHost) (s httpserver.StoreState) {
		if status, answer := post(t, h.url+"/admin/v1/store", ""); status != http.StatusOK || json.Unmarshal([]byte(answer), &s) != nil {
			t.Fatal(status, answer)
		}
		return s
	}
	if err := (pagesOwner{Store: "etcd://elsewhere:2379/kv3fs/moved"}).note(m.data); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		await(t, "it cannot lead", func() bool { return strings.Contains(state(h).Why, "etcd://elsewhere:2379/kv3fs/moved") })
	}
	if err := was.note(m.data); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		m.has(h, "K", true)
		await(t, "it has no reason any more", func() bool { return state(h).Why == "" })
		defer h.end(t)
	}
}

// TestPagesStopOverHungDirectory: the stop of a page service ends although the data directory hangs.
func TestPagesStopOverHungDirectory(t *testing.T) {
	daemontest.NeedRoot(t)
	config, err := cluster.ParseStore(fmt.Sprintf("etcd://%s/kv3fs/hung", etcd.Start(t, etcd.Options{Members: 1}).Endpoints()[0]))
	if err != nil {
		t.Fatal(err)
	}
	d := faultdir.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	p := Pages{
		Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Log: slog.New(slog.DiscardHandler), stopGrace: time.Second,
		Cluster: &PagesCluster{Store: EtcdStore{config}, Listen: "127.0.0.1:0", Token: "of hosts"},
	}
	go func() {
		done <- RunPages(ctx, d.Path, "test", SharingAuto, p, func(at []httpserver.Address) { ready <- "http://" + at[0].Where })
	}()
	var url string
	select {
	case url = <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	await(t, "it leads", func() bool {
		status, _ := post(t, url+"/0/initialize", `{"num_pages":1}`)
		return status/100 == 2
	})
	<-d.Hang(func(faultdir.Call) bool { return true }) // a host that leads looks at the note of whose index is in use
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), "at the page service") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
	d.Heal()
}
