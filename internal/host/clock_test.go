package host

import "testing"

func TestSinceBoot(t *testing.T) {
	was := SinceBoot()
	if is := SinceBoot(); is < was || was <= 0 {
		t.Errorf("%v after %v", is, was)
	}
}
