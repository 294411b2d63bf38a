package segment

import "sync"

// workers do what is too long for an engine's Done: checksums above all. Whoever adds a
// job does not wait; there are never more than the moves that the engine has taken.
type workers struct {
	mu     sync.Mutex
	wanted *sync.Cond
	jobs   []func()
	closed bool
	all    sync.WaitGroup
}

func newWorkers(n int) *workers {
	w := &workers{}
	w.wanted = sync.NewCond(&w.mu)
	for range n {
		w.all.Go(w.run)
	}
	return w
}

func (w *workers) add(job func()) {
	w.mu.Lock()
	w.jobs = append(w.jobs, job)
	w.mu.Unlock()
	w.wanted.Signal()
}

func (w *workers) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.jobs) == 0 {
			if w.closed {
				return
			}
			w.wanted.Wait()
		}
		job := w.jobs[0]
		w.jobs[0] = nil
		w.jobs = w.jobs[1:]
		w.mu.Unlock()
		job()
		w.mu.Lock()
	}
}

// close waits until all jobs are done.
func (w *workers) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wanted.Broadcast()
	w.all.Wait()
}
