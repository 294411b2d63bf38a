package files

import "testing"

func TestDefaultStreams(t *testing.T) {
	for _, c := range []struct {
		direct           bool
		processors, want int
	}{{false, 2, 16}, {false, 16, 128}, {false, 96, 128}, {true, 2, 128}} {
		if got := defaultStreams(c.direct, c.processors); got != c.want {
			t.Errorf("direct %v on %d processors: %d", c.direct, c.processors, got)
		}
	}
}
