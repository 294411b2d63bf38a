package policy

// Queue lists what a simulated cache holds in the order of use: slots, which are numbers
// from 0. Several queues share links: a slot is in one of them at a time.
type Queue struct {
	links          *Links
	newest, oldest int32
	len            int
}

// Links has an element for each slot. It may be appended to.
type Links []Link

// Link is where a slot is in its queue. A new one is empty.
type Link struct{ newer, older int32 }

// NoSlot is none.
const NoSlot = int32(-1)

// NewQueue returns an empty queue.
func NewQueue(links *Links) Queue { return Queue{links: links, newest: NoSlot, oldest: NoSlot} }

// Len returns how many slots there are.
func (q *Queue) Len() int { return q.len }

// Oldest returns the slot that was pushed first, or NoSlot.
func (q *Queue) Oldest() int32 { return q.oldest }

// Newer returns the slot that was pushed after one that is in the queue, or NoSlot.
func (q *Queue) Newer(slot int32) int32 { return (*q.links)[slot].newer }

// Push puts a slot in as the newest.
func (q *Queue) Push(slot int32) {
	links := *q.links
	links[slot] = Link{newer: NoSlot, older: q.newest}
	if q.newest != NoSlot {
		links[q.newest].newer = slot
	} else {
		q.oldest = slot
	}
	q.newest = slot
	q.len++
}

// Remove takes out a slot that is in the queue.
func (q *Queue) Remove(slot int32) {
	links := *q.links
	at := links[slot]
	if at.newer != NoSlot {
		links[at.newer].older = at.older
	} else {
		q.newest = at.older
	}
	if at.older != NoSlot {
		links[at.older].newer = at.newer
	} else {
		q.oldest = at.newer
	}
	q.len--
}

// Pop takes out the oldest slot. There must be one.
func (q *Queue) Pop() int32 {
	slot := q.oldest
	q.Remove(slot)
	return slot
}
