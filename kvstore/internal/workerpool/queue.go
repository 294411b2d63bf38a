package workerpool

// queued is a job, or the pieces low to high-1 of some work.
type queued struct {
	Job

	work             Work
	low, high, grain int
}

// fifo is a queue of jobs and pieces of work. The pool's lock guards it.
type fifo struct {
	all  []queued // from head on
	head int
}

func (f *fifo) len() int { return len(f.all) - f.head }

// first returns what pop would begin with. The queue must not be empty.
func (f *fifo) first() *queued { return &f.all[f.head] }

// push appends to the queue. If most of its entries have left, it reuses their memory.
func (f *fifo) push(q queued) {
	if len(f.all) == cap(f.all) && f.head > len(f.all)/2 {
		n := copy(f.all, f.all[f.head:])
		clear(f.all[n:])
		f.all, f.head = f.all[:n], 0
	}
	f.all = append(f.all, q)
}

// pushPieces appends pieces, which it joins with those before them if they follow one
// another.
func (f *fifo) pushPieces(q queued) {
	if last := len(f.all) - 1; last >= f.head && f.all[last].work == q.work && f.all[last].high == q.low {
		f.all[last].high = q.high
		return
	}
	f.push(q)
}

// pop takes the first job, or the next pieces of the first work.
func (f *fifo) pop() queued {
	first := f.first()
	q := *first
	if q.work != nil && q.high-q.low > q.grain {
		q.high = q.low + q.grain
		first.low = q.high
		return q
	}
	*first = queued{}
	if f.head++; f.head == len(f.all) {
		f.all, f.head = f.all[:0], 0
	}
	return q
}

// take empties the queue.
func (f *fifo) take() []queued {
	left := f.all[f.head:]
	f.all, f.head = nil, 0
	return left
}
