package workload_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

func TestPatternAcceptsItselfAtEveryLength(t *testing.T) {
	p := workload.PatternOf(7, 1)
	whole := make([]byte, 200)
	p.Fill(whole)
	for n := range whole {
		part := make([]byte, n)
		p.Fill(part)
		if !bytes.Equal(part, whole[:n]) {
			t.Fatalf("the first %d bytes depend on the length", n)
		}
		if wrong, first := p.Check(part); wrong != 0 || first != -1 {
			t.Fatalf("length %d: %d wrong bytes from %d", n, wrong, first)
		}
	}
}

func TestPatternFindsEveryChangedByte(t *testing.T) {
	p := workload.PatternOf(7, 1)
	buf := make([]byte, 100)
	for at := range buf {
		p.Fill(buf)
		buf[at] ^= 0x80
		if wrong, first := p.Check(buf); wrong != 1 || first != at {
			t.Fatalf("byte %d changed: %d wrong, first %d", at, wrong, first)
		}
	}
	p.Fill(buf)
	buf[3]++
	buf[99]++
	if wrong, first := p.Check(buf); wrong != 2 || first != 3 {
		t.Fatalf("%d wrong, first %d; want 2 and 3", wrong, first)
	}
}

// Every word must tell blocks, ranks and offsets apart: these bytes must reveal a load that
// is off by whole words.
func TestPatternTellsBlocksRanksAndOffsetsApart(t *testing.T) {
	const n = 4096
	base := make([]byte, n)
	workload.PatternOf(7, 1).Fill(base)
	for name, other := range map[string]workload.Pattern{
		"next block": workload.PatternOf(8, 1), "next rank": workload.PatternOf(7, 2),
		"swapped": workload.PatternOf(1, 7), "zero": workload.PatternOf(0, 0), "shorter": workload.PatternOf(7),
	} {
		if wrong, first := other.Check(base); first > 7 || wrong < n*9/10 {
			t.Errorf("%s: only %d of %d bytes differ, first at %d", name, wrong, n, first)
		}
	}
	for shift := 8; shift < n/2; shift += 8 {
		if wrong, _ := workload.PatternOf(7, 1).Check(base[shift:]); wrong < (n-shift)*9/10 {
			t.Fatalf("shifted by %d: only %d bytes differ", shift, wrong)
		}
	}
	zeros := make([]byte, n)
	if wrong, _ := workload.PatternOf(7, 1).Check(zeros); wrong < n*9/10 {
		t.Errorf("zeros: only %d of %d bytes differ", wrong, n)
	}
}

func BenchmarkPattern(b *testing.B) {
	buf := make([]byte, 1<<20)
	p := workload.PatternOf(rand.Uint64())
	p.Fill(buf)
	b.Run("fill", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			p.Fill(buf)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if wrong, _ := p.Check(buf); wrong != 0 {
				b.Fatal(wrong)
			}
		}
	})
}

// What was spoiled differs from the pattern in every byte.
func TestSpoil(t *testing.T) {
	for _, size := range []int{0, 1, 7, 8, 31, 32, 100, 4096} {
		p, buf := workload.PatternOf(1, uint64(size)), make([]byte, size)
		p.Spoil(buf)
		if wrong, _ := p.Check(buf); wrong != size {
			t.Errorf("%d of %d bytes differ", wrong, size)
		}
	}
}
