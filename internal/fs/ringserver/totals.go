package ringserver

// Totals count what clients have registered.
type Totals struct {
	Processes, Rings, Iovs int
	IovBytes               int64
}

// Totals returns what clients have registered, for those who ask often.
func (s *Server) Totals() Totals {
	type key struct {
		owner *owner
		uid   uint32
	}
	processes := map[key]struct{}{}
	var all Totals
	s.table.mu.RLock()
	defer s.table.mu.RUnlock()
	for _, e := range s.table.byName {
		processes[key{e.owner, e.UID}] = struct{}{}
		if e.ring != nil {
			all.Rings++
		} else {
			all.Iovs++
			all.IovBytes += e.bytes
		}
	}
	all.Processes = len(processes)
	return all
}

// Limits returns what bounds the registrations, the users with rings, and the mappings of all clients.
func (s *Server) Limits() (registrations, ringUsers int, mappedBytes int64) {
	return s.opts.MaxRegistrations, s.opts.MaxRingUsers, s.opts.MaxMappedBytes
}
