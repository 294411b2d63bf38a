package posix

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const stageBytes = 1 << 20

// staging lends aligned memory from outside Go's heap. It has at most as many pieces as
// there are streams.
type staging struct {
	mu     sync.Mutex
	free   [][]byte
	closed bool
}

func (s *staging) take() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		stage := s.free[n-1]
		s.free = s.free[:n-1]
		return stage, nil
	}
	stage, err := unix.Mmap(-1, 0, stageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", stageBytes, err)
	}
	return stage, nil
}

func (s *staging) give(stage []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // the move has returned after Close
		_ = unix.Munmap(stage)
		return
	}
	s.free = append(s.free, stage)
}

func (s *staging) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, stage := range s.free {
		_ = unix.Munmap(stage)
	}
	s.free = nil
}
