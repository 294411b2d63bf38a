package cache

// planAtOnce is how many things are done between two releases of the lock, so that a load between
// two of a batch's millions waits for some hundred only.
const planAtOnce = 512

// inTurns calls do for n things, some at a time, with the lock held.
func (s *Store) inTurns(n int, do func(low, high int)) {
	for low := 0; low < n; low += planAtOnce {
		if low > 0 {
			s.handOver()
		}
		s.turn(low, min(low+planAtOnce, n), do)
	}
}

func (s *Store) turn(low, high int, do func(low, high int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(low, high)
}
