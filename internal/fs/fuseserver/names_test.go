package fuseserver

import (
	"fmt"
	"os"
	"testing"
)

// Each name of a file with many works while others are removed, whichever the tree knows.
func TestFileWithManyNames(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.write("0", "text")
	const names = 200
	for i := 1; i < names; i++ {
		if err := os.Link(first, w.path(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range names {
		if _, err := os.Stat(w.path(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range names {
		name := fmt.Sprint((i*77 + 13) % names) // in no order
		w.want(name, "text")
		if err := os.Remove(w.path(name)); err != nil {
			t.Fatal(err)
		}
	}
}
