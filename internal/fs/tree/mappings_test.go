package tree

import "testing"

// However many files may be mapped, only so many are looked at in a period, and all in turn.
func TestMappingsTakeTurns(t *testing.T) {
	var m mappings
	const files, most = 1000, 64
	seen := make(map[*node]int)
	for range files {
		m.add(&node{}, 1)
	}
	closed := &node{}
	m.add(closed, 0)
	for range closedEvery * (files/most + 1) {
		now := m.next(most)
		if len(now) > most {
			t.Fatalf("%d files are looked at in one period", len(now))
		}
		for n := range now {
			seen[n]++
		}
	}
	if len(seen) != files+1 || seen[closed] != 1 {
		t.Errorf("%d files of %d had their turn, the closed one %d times", len(seen), files+1, seen[closed])
	}
	m.forget(closed)
	if len(m.files) != files {
		t.Errorf("%d files are left", len(m.files))
	}
}
