package index

// due is an event of a page at a time. It is void if the page has changed since.
type due struct {
	at     int64
	page   uint32
	serial uint32 // see order
}

// dueHeap is a heap with the earliest event at its head. Pages come in batches of one
// time, so most pushes move nothing.
type dueHeap []due

// children is the number of children of a node: they lie in one or two cache lines.
const children = 4

func (h *dueHeap) push(d due) {
	*h = append(*h, d)
	a := *h
	for i := len(a) - 1; i > 0; {
		up := (i - 1) / children
		if a[up].at <= a[i].at {
			return
		}
		a[up], a[i] = a[i], a[up]
		i = up
	}
}

// filter removes the events for which keep is false.
func (h *dueHeap) filter(keep func(due) bool) {
	all := *h
	*h = all[:0]
	for _, d := range all {
		if keep(d) {
			h.push(d)
		}
	}
}

func (h *dueHeap) pop() due {
	a := *h
	first, last := a[0], len(a)-1
	a[0] = a[last]
	a = a[:last]
	*h = a
	for i := 0; ; {
		least := i
		for c := children*i + 1; c <= children*i+children && c < len(a); c++ {
			if a[c].at < a[least].at {
				least = c
			}
		}
		if least == i {
			return first
		}
		a[i], a[least] = a[least], a[i]
		i = least
	}
}
