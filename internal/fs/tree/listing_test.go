package tree

import (
	"fmt"
	"os"
	"testing"
)

// However many directories a user lists, and leaves open in the middle, most of them have
// small buffers, and those listed to the end have none.
func TestListingsHaveBoundedBuffers(t *testing.T) {
	const open = mostLargeListings + 100
	tr, dir := newTree(t, Options{})
	for i := range 300 {
		if err := os.WriteFile(fmt.Sprintf("%s/%0200d", dir, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := func(d *Dir, most int) int {
		n := 0
		for from, ended := int64(0), false; !ended && n < most; {
			var err error
			ended, err = d.List(from, func(e Dirent) bool {
				n++
				from = e.Next
				return n < most
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	var dirs []*Dir
	bytes := 0
	for range open {
		d := must(tr.OpenDir(RootID))
		dirs = append(dirs, d)
		list(d, 2)
		bytes += len(d.buf)
	}
	if most := mostLargeListings*largeListingBytes + (open-mostLargeListings)*smallListingBytes; bytes > most {
		t.Errorf("%d listings have %d bytes of buffers, want %d", open, bytes, most)
	}
	for _, d := range dirs {
		if n := list(d, 1000); n != 300 || d.buf != nil {
			t.Fatalf("%d entries are listed, with %d bytes of buffer left", n, len(d.buf))
		}
	}
	if n := tr.listings.Load(); n != 0 {
		t.Errorf("%d listings at their end count as having a buffer", n)
	}
	list(dirs[0], 2)
	for _, d := range dirs {
		d.Close()
	}
	if n := tr.listings.Load(); n != 0 {
		t.Errorf("%d closed listings count as having a buffer", n)
	}
}

// A listing that goes on where a predecessor's has ended can be begun again.
func TestListingBegunByAPredecessor(t *testing.T) {
	tr, dir := newTree(t, Options{})
	for i := range 3 {
		if err := os.WriteFile(fmt.Sprint(dir, "/", i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var ends []int64
	list := func(d *Dir, from int64) (n int) {
		if ended, err := d.List(from, func(e Dirent) bool {
			n++
			ends = append(ends, e.Next)
			return true
		}); err != nil || !ended {
			t.Fatal(ended, err)
		}
		return n
	}
	before := must(tr.OpenDir(RootID))
	list(before, 0)
	before.Close()
	for i, at := range ends[:3] {
		d := must(tr.OpenDir(RootID))
		if n := list(d, at); n != 2-i {
			t.Errorf("%d entries after the %dth, want %d", n, i+1, 2-i)
		}
		if n := list(d, 0); n != 3 {
			t.Errorf("read from the start after the %dth: %d entries, want 3", i+1, n)
		}
		d.Close()
	}
}
