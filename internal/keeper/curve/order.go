package curve

// order has the followed keys in places by their last use, and finds how many bytes were
// used after one. It is a Fenwick tree of sizes by place.
type order struct {
	sums  []int64 // from 1
	total int64
	next  int // the place for the next use
}

func newOrder(places int) order { return order{sums: make([]int64, places+1), next: 1} }

func (o *order) full() bool { return o.next == len(o.sums) }

func (o *order) reset() {
	clear(o.sums)
	o.total, o.next = 0, 1
}

// add gives a size the next place, which must exist, and returns it.
func (o *order) add(sizeBytes int64) int {
	place := o.next
	o.next++
	o.change(place, sizeBytes)
	return place
}

// remove takes a size out of its place.
func (o *order) remove(place int, sizeBytes int64) { o.change(place, -sizeBytes) }

func (o *order) change(place int, by int64) {
	o.total += by
	for ; place < len(o.sums); place += place & -place {
		o.sums[place] += by
	}
}

// after returns the bytes in the places after one.
func (o *order) after(place int) int64 {
	upTo := int64(0)
	for ; place > 0; place -= place & -place {
		upTo += o.sums[place]
	}
	return o.total - upTo
}
