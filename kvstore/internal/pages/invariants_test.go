//go:build invariants

package pages

import (
	"testing"
	"time"
)

func TestGivingTheFileBackTwiceIsSeen(t *testing.T) {
	p := newPageFile(nil, nil, time.Second)
	defer p.opens.Close()
	h := p.current()
	p.give(h)
	h.users = 0 // as if it had been given back once more
	defer func() {
		if recover() == nil {
			t.Error("a file without users was given back")
		}
	}()
	p.give(h)
}
