package integrity

// Move is what the daemon does to a file's names, owner, mode or attributes: it moves the file's time of change, which
// else tells of others. The zero value is one of a file without sums in use.
type Move struct {
	file  *File
	stamp stamp
	epoch uint64
}

// Moving begins a Move of the file that name leads to, in the directory of dir, or of dir itself if name is empty. Done
// ends it. On a nil Store it does nothing.
func (s *Store) Moving(dir int, name string) Move {
	if s == nil {
		return Move{}
	}
	now, err := lookAtName(dir, name)
	if err != nil {
		return Move{}
	}
	s.mu.Lock()
	f := s.active[now.ino]
	s.mu.Unlock()
	if f == nil {
		return Move{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.known || f.inFlux > 0 || f.stamp != now {
		return Move{}
	}
	return Move{f, now, f.epoch}
}

// Done says that it is over, and where the file is now.
func (m Move) Done(dir int, name string) {
	f := m.file
	if f == nil {
		return
	}
	now, err := lookAtName(dir, name)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.epoch == m.epoch && f.inFlux == 0 && f.stamp == m.stamp && now.sameBytes(m.stamp) {
		f.stamp, f.dirty = now, true
	}
}
