package ringio

import (
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/usrbio"
)

// A write that is to be ahead overtakes those that wait, but not one whose pieces are being
// cut, and not others that are ahead.
func TestAhead(t *testing.T) {
	var d direction
	for i, op := range []transfer.Op{{Offset: 0}, {Offset: 1}, {Offset: 2, Ahead: true}, {Offset: 3}, {Offset: 4, Ahead: true}} {
		d.push(&move{op: op})
		if i == 0 {
			d.queue[0].next = 1
		}
	}
	var order []int64
	for _, m := range d.queue {
		order = append(order, m.op.Offset)
	}
	if want := []int64{0, 2, 4, 1, 3}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
}

// Writes go to the daemon while they are few bytes, and one in any case. The room for one comes
// back when another has ended, or was given up.
func TestWritesUnderWayAreBounded(t *testing.T) {
	d := &direction{write: true, active: 64}
	r := &ring{d: d, entries: make([]entry, 64)}
	for i := range r.entries {
		r.spare = append(r.spare, i)
	}
	d.rings = []*ring{r}
	cut := func(bytes int) bool {
		m := &move{op: transfer.Op{Write: true, Buf: make([]byte, bytes)}, end: bytes, iov: new(usrbio.Iov), file: new(file)}
		return d.cut(m, time.Now())
	}
	const part = writeBytes / 4
	for n := range 5 {
		if did := cut(part); did != (n < 4) {
			t.Errorf("with %d bytes under way, %d more are begun: %v", n*part, part, did)
		}
	}
	d.end(nil, r, r.ready[0])
	if !cut(part) || cut(part) {
		t.Error("the end of one does not make room for one")
	}
	for i := range r.entries {
		if r.entries[i].state != free {
			d.end(nil, r, i)
		}
	}
	if !cut(2*writeBytes) || cut(1) || d.bytes != 2*writeBytes {
		t.Errorf("%d bytes are under way, with one write of %d", d.bytes, 2*writeBytes)
	}
}

// The time of a request begins anew when one that began before it is done, and not when
// one is that began later.
func TestRequestsProgress(t *testing.T) {
	then := time.Now()
	d := &direction{begun: 3}
	r := &ring{d: d, entries: make([]entry, 4)}
	for i := range 3 {
		r.entries[i] = entry{state: begun, number: uint64(i + 1), since: then}
	}
	d.rings = []*ring{r}
	now := then.Add(time.Second)
	d.extend(r, []usrbio.Completion{{Userdata: 1}}, now)
	for i, want := range []time.Time{then, then, now} {
		if got := r.entries[i].since; !got.Equal(want) {
			t.Errorf("request %d is counted from %v, want %v", i+1, got.Sub(then), want.Sub(then))
		}
	}
}
