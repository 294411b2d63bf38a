package shm

import "testing"

func TestOffsetIn(t *testing.T) {
	all := make([]byte, 300)
	outer := all[100:200]
	for name, c := range map[string]struct {
		inner  []byte
		offset int64
		ok     bool
	}{
		"all of it":         {outer, 0, true},
		"its first byte":    {outer[:1], 0, true},
		"its last byte":     {outer[99:], 99, true},
		"somewhere in it":   {outer[10:20], 10, true},
		"a longer capacity": {all[150:200:300], 50, true},
		"one byte before":   {all[99:101], 0, false},
		"one byte beyond":   {all[199:201], 0, false},
		"before":            {all[:100], 0, false},
		"behind":            {all[200:], 0, false},
		"around":            {all, 0, false},
		"elsewhere":         {make([]byte, 10), 0, false},
		"nothing":           {outer[:0], 0, false},
		"nil":               {nil, 0, false},
	} {
		if offset, ok := OffsetIn(outer, c.inner); offset != c.offset || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", name, offset, ok, c.offset, c.ok)
		}
	}
	if _, ok := OffsetIn(nil, outer); ok {
		t.Error("a slice was found in a nil slice")
	}
}
