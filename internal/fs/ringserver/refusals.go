package ringserver

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Refused is what was refused to a client.
type Refused int

// The kinds of it.
const (
	NameRefused      Refused = iota // neither that of an iov nor that of a ring
	IovRefused                      // an iov
	RingRefused                     // a ring
	SemaphoreRefused                // a user's submit semaphores
	refusedKinds
)

// Refusal is how often something was refused to clients, by errno; the errno 0 stands for all others.
type Refusal struct {
	What  Refused
	Errno syscall.Errno
	Times int64
}

// refusalErrnos are counted apart. The last one is for all others.
var refusalErrnos = [...]syscall.Errno{
	syscall.EINVAL, syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.EEXIST, syscall.ESRCH, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, 0,
}

type refusals [refusedKinds][len(refusalErrnos)]atomic.Int64

func (r *refusals) add(what Refused, err error) {
	at := 0
	for at < len(refusalErrnos)-1 && !errors.Is(err, refusalErrnos[at]) {
		at++
	}
	r[what][at].Add(1)
}

// refusedKind returns what a link with that name would have been.
func refusedKind(name string) Refused {
	switch link, err := wire.ParseLink(name); {
	case err != nil:
		return NameRefused
	case link.Ring:
		return RingRefused
	}
	return IovRefused
}

// Refusals returns what was refused to clients since the server was made.
func (s *Server) Refusals() (all []Refusal) {
	for what := range s.refusals {
		for i := range s.refusals[what] {
			all = append(all, Refusal{Refused(what), refusalErrnos[i], s.refusals[what][i].Load()})
		}
	}
	return all
}

// countFor says where a ring's requests count, once its process is known.
func (s *Server) countFor(e *entry) {
	if e.owner == nil {
		e.ring.process = &processTraffic{}
		e.ring.countAs(clientKey{"", e.UID})
		return
	}
	e.ring.process = &e.owner.traffic
	e.ring.countAs(clientKey{e.owner.name, e.UID})
}

// Load is what a server has to do at the moment.
type Load struct {
	InFlight int64 // requests that were admitted and are not answered
	Workers  int   // workers that move bytes
	Stuck    int   // of these, those that wait for a device or for room for long
}

// Load returns what rings of a priority have to do at the moment. It may be called at any time.
func (s *Server) Load(p wire.Priority) (l Load) {
	of := s.poller(p)
	of.mu.Lock()
	defer of.mu.Unlock()
	for _, u := range of.users {
		l.InFlight += u.admitted.Load()
	}
	l.Workers, l.Stuck = len(of.working), of.stuck
	return l
}

func (p *poller) stuckWorkers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuck
}

// Expired returns how many requests were answered with ETIMEDOUT because they met their deadline.
func (s *Server) Expired() (reads, writes int64) { return s.expired[0].Load(), s.expired[1].Load() }
