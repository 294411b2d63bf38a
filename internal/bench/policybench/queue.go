package policybench

// queue is a list of blocks, linked through arrays with an element for each block of the
// trace, which several queues share: a block is in one of them at a time.
type queue struct {
	links          []link
	newest, oldest int32
	len            int
}

type link struct{ newer, older int32 }

const none = int32(-1)

func newQueue(links []link) queue { return queue{links: links, newest: none, oldest: none} }

// push puts a block in as the newest.
func (q *queue) push(b int32) {
	q.links[b] = link{newer: none, older: q.newest}
	if q.newest != none {
		q.links[q.newest].newer = b
	} else {
		q.oldest = b
	}
	q.newest = b
	q.len++
}

// remove takes out a block that is in the queue.
func (q *queue) remove(b int32) {
	at := q.links[b]
	if at.newer != none {
		q.links[at.newer].older = at.older
	} else {
		q.newest = at.older
	}
	if at.older != none {
		q.links[at.older].newer = at.newer
	} else {
		q.oldest = at.newer
	}
	q.len--
}

// pop takes out the oldest block. There must be one.
func (q *queue) pop() int32 {
	b := q.oldest
	q.remove(b)
	return b
}
