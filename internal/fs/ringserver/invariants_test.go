//go:build invariants

package ringserver

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Each invariant that is broken on purpose is noticed.
func TestInvariantsCatch(t *testing.T) {
	for _, c := range []struct {
		want   string
		breach func(s *Server, r *ring, batch []*request)
	}{
		{"completed twice", func(_ *Server, r *ring, batch []*request) {
			r.refs++ // so that only the completion is wrong
			r.complete(batch)
			r.complete(batch)
		}},
		{"recycled; completed: false", func(_ *Server, r *ring, batch []*request) { r.recycle(batch[0]) }},
		{"in flight in state", func(_ *Server, r *ring, batch []*request) {
			batch[0].state.Store(stateAnswered) // without a completion
			r.take(nil)
		}},
		{"a worker ended it in state", func(_ *Server, _ *ring, batch []*request) {
			batch[0].done()
			batch[0].done()
		}},
		{"2 requests in flight, 0 completion slots", func(_ *Server, r *ring, _ []*request) {
			r.freeSlots = 0
			r.take(nil)
		}},
		{"2 requests linked, 1 counted", func(_ *Server, r *ring, _ []*request) {
			r.inflight.n = 1
			r.take(nil)
		}},
		{"unmapped while it is registered", func(_ *Server, r *ring, batch []*request) {
			r.refs--
			r.complete(batch)
		}},
		{"closed while the poller can find it", func(_ *Server, r *ring, _ []*request) { r.close() }},
		{"released more often than acquired", func(s *Server, _ *ring, _ []*request) {
			v := anIov(t, s)
			v.acquire().release()
			v.cur.release()
			v.cur.release()
		}},
		{"detached after it was unmapped", func(s *Server, _ *ring, _ []*request) {
			v := anIov(t, s)
			w := v.cur
			w.release()
			v.detach(w, 0, 4096, false)
		}},
		{"no request can find the iov", func(s *Server, _ *ring, _ []*request) {
			anIov(t, s)
			s.table.buffers.Clear()
			anIov(t, s)
		}},
		{"watched, but owns nothing", func(s *Server, _ *ring, _ []*request) {
			for _, w := range s.owners.byTgid {
				clear(w.entries)
			}
			h, _ := s.owners.dirOpened(me.UID, me.PID+1<<30) // of no process
			s.owners.dirReleased(h)
		}},
	} {
		t.Run(c.want, func(t *testing.T) {
			s, err := New(newDirFiles(), nobodyReadonly, blockio.Mover{}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			p := newPeer(t, s, 8, ".r0.t0")
			p.prep(0, wire.Args{})
			p.prep(1, wire.Args{})
			r := s.table.get(p.name).ring
			batch, _, _ := r.take(nil)
			defer func() {
				defer release(s)
				if said := fmt.Sprint(recover()); !strings.Contains(said, c.want) {
					t.Errorf("the panic says %q, want %q", said, c.want)
				}
			}()
			c.breach(s, r, batch)
		})
	}
}

// release frees what a server holds when it cannot be closed, because its state
// is broken and its locks may be held.
func release(s *Server) {
	s.submit.close(false)
	for _, w := range s.owners.byID {
		unix.Close(w.pidfd)
	}
	unix.Close(s.owners.epoll)
	unix.Close(s.owners.stopEvent)
	for _, e := range s.table.byName {
		if e.ring != nil && e.ring.m.Len() > 0 {
			e.ring.m.Unmap()
		}
		if e.iov != nil && e.iov.cur.m.Len() > 0 {
			e.iov.cur.m.Unmap()
		}
	}
}

// anIov registers an iov.
func anIov(t *testing.T, s *Server) *iov {
	t.Helper()
	_, id, _, err := object(t, s, 4096, "")
	if err != nil {
		t.Fatal(err)
	}
	return s.table.buffer(id)
}
