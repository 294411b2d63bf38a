package quota

import "testing"

// A daemon without root's rights leaves to its own user what others do not have.
func TestDaemonsOwnUser(t *testing.T) {
	q := New(1600)
	q.daemon = 1000
	if q.Take(1001, 401) || !q.Take(1001, 400) {
		t.Error("another user has another share than a quarter")
	}
	if !q.Take(1000, 1200) || q.Take(1000, 1) {
		t.Error("the daemon's own user has another share than what is left")
	}
	q.Return(1001, 400)
	q.Return(1000, 1200)
	if q.Total() != 0 || q.others != 0 {
		t.Errorf("%d units are counted, %d of them others', want none", q.Total(), q.others)
	}
}
