package index

// The ranks that were forgotten are remembered, as a time, as long as clients may use their pages: a rank of the space that is
// new gets none until then. A start does not know when they were forgotten, and waits again. So the log says when it is over.

// close makes new ranks of the space wait until a time. It is never 0, also if they need not wait: the log says that a
// rank was forgotten.
func (s *space) close(until int64) {
	s.closedUntil = max(s.closedUntil, until, 1)
	s.index.reopenAt(s.closedUntil)
}

// reopenAt has reopen look at the spaces at a time, unless it will before.
func (x *Index) reopenAt(at int64) {
	for {
		next := x.nextReopen.Load()
		if next != 0 && next <= at || x.nextReopen.CompareAndSwap(next, at) {
			return
		}
	}
}

// reopen logs what is over, if it is time to look, and discards spaces of which nothing is left. It is called often.
func (x *Index) reopen(now int64) {
	if next := x.nextReopen.Load(); next == 0 || next > now || !x.nextReopen.CompareAndSwap(next, 0) {
		return
	}
	for _, s := range x.all() {
		s.mu.Lock()
		if !s.exclusive { // else another rank may be being forgotten
			s.reopen(now)
		}
		if s.closedUntil != 0 {
			x.reopenAt(s.closedUntil)
		} else if !s.exclusive && s.inflight == 0 {
			s.discard()
		}
		s.mu.Unlock()
	}
}

// reopen logs, if so, that no client uses a page of a forgotten rank. No caller waits for this record: without it, a start is
// more careful than it has to be.
func (s *space) reopen(now int64) {
	if s.closedUntil == 0 || s.closedUntil > now {
		return
	}
	s.closedUntil = 0
	s.index.log.Append(func(error) {}, s.encode([]*record{{kind: reopened}})...)
}
