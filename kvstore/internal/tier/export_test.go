package tier

// Queued returns how long the queue is, with what has left it.
func (s *Store) Queued() int {
	s.unsent.mu.Lock()
	defer s.unsent.mu.Unlock()
	return len(s.unsent.queue)
}

// Lost returns how many buffers a storage may still use.
func (s *Store) Lost() (n int) {
	for _, m := range []*memory{s.memory, s.outgoing} {
		m.mu.Lock()
		n += m.lost
		m.mu.Unlock()
	}
	return n
}
