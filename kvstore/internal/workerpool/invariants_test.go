//go:build invariants

package workerpool

import (
	"testing"
	"time"
)

func TestWorkAfterCloseIsSeen(t *testing.T) {
	p := New(1, 0)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a pool that is closed took work")
		}
	}()
	p.Each(&recorder{}, 0, 1, 1)
}

func TestWorkThatMayHangIsSeen(t *testing.T) {
	p := New(1, time.Second)
	defer p.Close()
	defer func() {
		if recover() == nil {
			t.Error("a pool with a timeout took work that it cannot bound")
		}
	}()
	p.Each(&recorder{}, 0, 1, 1)
}
