package daemon

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// startWith starts the page service of a host with times of its own.
func (m *mover) startWith(name, store string, startOver bool, times pageservice.Options) *sharedHost {
	m.Helper()
	h, err := m.tryWith(name, store, startOver, times)
	if err != nil {
		m.Fatal(err)
	}
	return h
}

// waits returns for how long a host's page service still waits for clients, as it says to who wants to remove a page file.
func (m *mover) waits(h *sharedHost) time.Duration {
	m.Helper()
	m.ask(h, "/0/initialize", `{"num_pages":1}`)
	err := h.files.index.Load().GiveUp(m.Context(), pageservice.Space{Set: "sglang/kv/0"}, 0)
	if err == nil {
		return 0
	}
	said := regexp.MustCompile(`for (\S+) more`).FindStringSubmatch(err.Error())
	if said == nil {
		m.Fatal(err)
	}
	d, err := time.ParseDuration(said[1])
	if err != nil {
		m.Fatal(err)
	}
	return d
}

// brief are times after which nothing has to be waited for.
func brief() pageservice.Options {
	const moment = 100 * time.Millisecond
	return pageservice.Options{Lease: moment, Hold: moment, Reserve: moment, Quarantine: moment}
}

// TestMovedPromises: an index that pages were moved to keeps what those before it have promised for longer, however often it is started, until nobody
// relies on it any more.
func TestMovedPromises(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	for _, shared := range []bool{true, false} {
		at := fmt.Sprintf("etcd://%s/kv3fs/%v/", members.Endpoints()[0], shared)
		for what, stores := range map[string][2]string{
			"embedded, etcd": {httpserver.Embedded, at + "first"},
			"etcd, embedded": {at + "second", httpserver.Embedded},
			"two prefixes":   {at + "third", at + "fourth"},
		} {
			t.Run(fmt.Sprintf("%s, shared %v", what, shared), func(t *testing.T) {
				t.Parallel()
				m := newMover(t, shared)
				long := brief()
				h := m.startWith("a", stores[0], false, brief())
				h.end(t)
				long.Lease, long.LateWrites = 5*time.Hour, 5*time.Hour
				h = m.startWith("a", stores[0], false, long) // who leads now tells its clients more
				m.has(h, "K", false)
				h.end(t)
				startOver := stores[0] != httpserver.Embedded
				for range 3 {
					h = m.startWith("a", stores[1], startOver, brief())
					if left := m.waits(h); left < 9*time.Hour {
						t.Errorf("it gives pages out in %v", left)
					}
					h.end(t)
					startOver = false
				}
			})
		}
		t.Run(fmt.Sprintf("until it is over, shared %v", shared), func(t *testing.T) {
			t.Parallel()
			m := newMover(t, shared)
			times := brief()
			times.Lease += 2 * time.Second
			h := m.startWith("a", at+"over", false, times)
			m.has(h, "K", false)
			h.end(t)
			for _, store := range []string{httpserver.Embedded, at + "back"} {
				before := times.Promises()
				times.Lease -= time.Second
				began := time.Now()
				h = m.startWith("a", store, store == httpserver.Embedded, times)
				m.has(h, "K", false)
				is, err := readPagesOwner(m.data)
				if early := time.Since(began) < movedHandover; err != nil || early && (!is.Moved || is.Promises != before) {
					t.Errorf("%s: %+v, %v", store, is, err)
				}
				await(t, store+": nobody relies on the other one", func() bool {
					is, err := readPagesOwner(m.data)
					return err == nil && !is.Moved && is.Promises == times.Promises()
				})
				m.save(h, "K")
				h.end(t)
			}
		})
	}
}

// TestMovedIndexStartedAgain: the host of an index that pages were moved from may answer for some seconds more, and a start of the new one within them
// does not forget that.
func TestMovedIndexStartedAgain(t *testing.T) {
	t.Parallel()
	m := newMover(t, true)
	h := m.startWith("b", httpserver.Embedded, false, brief())
	h.end(t)
	for range 2 {
		began := time.Now()
		h = m.startWith("a", httpserver.Embedded, false, brief())
		if left := m.waits(h); left+time.Since(began) < movedHandover {
			t.Errorf("it gives pages out in %v", left)
		}
		h.end(t)
	}
}

// TestLongerPromisesBefore: a host's own index whose times were made shorter keeps the longer ones until nobody relies on them any more.
func TestLongerPromisesBefore(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		m := newMover(t, shared)
		long := brief()
		long.Lease = 10 * time.Hour
		h := m.startWith("a", httpserver.Embedded, false, long)
		m.save(h, "K")
		h.end(t)
		for range 2 {
			h = m.startWith("a", httpserver.Embedded, false, brief())
			m.has(h, "K", true)
			if left := m.waits(h); left < 9*time.Hour {
				t.Errorf("shared %v: it gives the page out in %v", shared, left)
			}
			h.end(t)
		}
	}
}
