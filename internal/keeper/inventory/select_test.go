package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// Candidates come in order, also in parts: temporary ones first, then by rank, and the newest number first where that is the same; below one
// directory only, and without those that are in use, unknown or kept.
func TestCandidates(t *testing.T) {
	v, err := inventory.New(t.TempDir(), inventory.Options{Kind: func(path string) (inventory.Kind, inventory.Group) {
		switch {
		case strings.Contains(path, "tmp"):
			return inventory.Temporary, inventory.Group{}
		case strings.Contains(path, "kept"):
			return inventory.Kept, inventory.Group{}
		case strings.Contains(path, "unknown"):
			return inventory.Unknown, inventory.Group{}
		}
		return inventory.Entry, inventory.Group{}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	root := v.KeyOf(v.Root())
	dir := inventory.Key{Dev: root.Dev, Ino: 1 << 60}
	v.Created(dir, root, "dir", true)
	key := func(n int) inventory.Key { return inventory.Key{Dev: root.Dev, Ino: uint64(1<<61 + n)} }
	for n, name := range []string{"a", "b", "tmp1", "kept", "unknown", "open", "gone", "c", "tmp2"} {
		v.Created(key(n), dir, name, false)
	}
	v.Created(key(100), root, "outside", false)
	v.Opened(key(5), dir, "open")
	v.Opened(key(6), dir, "gone")
	v.Removed(key(6), dir, "gone", true)
	below, _ := v.Directory(dir)
	for _, c := range []struct {
		name    string
		top     *inventory.Directory
		unknown bool
		want    []int
	}{
		{"below", below, false, []int{8, 2, 7, 1, 0}},
		{"all", v.Root(), false, []int{8, 2, 100, 7, 1, 0}},
		{"unknown", below, true, []int{8, 2, 7, 4, 1, 0}},
	} {
		for most := 1; most < 8; most++ {
			q := inventory.Query{Top: c.top, Most: most, Unknown: c.unknown, Rank: func(uint32, uint8) int64 { return 5 }}
			var got []int
			for {
				part := v.Candidates(q)
				for _, one := range part {
					got = append(got, int(one.Key.Ino-1<<61))
				}
				if len(part) == 0 {
					break
				}
				q.After = &part[len(part)-1]
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %d at a time: %v; want %v", c.name, most, got, c.want)
			}
		}
	}
}

// Room is the least that a directory's limit and those above it leave.
func TestRoom(t *testing.T) {
	v := open(t, t.TempDir())
	scan(t, v)
	root := v.KeyOf(v.Root())
	key := func(n int) inventory.Key { return inventory.Key{Dev: root.Dev, Ino: uint64(1<<61 + n)} }
	v.Created(key(1), root, "1", true)
	v.Created(key(2), key(1), "2", true)
	if limit, left := v.Room(key(2)); limit != inventory.Unlimited || left != inventory.Unlimited {
		t.Errorf("without limits: %d, %d", limit, left)
	}
	own := v.Root().Bytes()
	v.Root().SetLimit(own + 1000)
	one, _ := v.Directory(key(1))
	one.SetLimit(5000)
	v.Claim(key(2), 600, false)
	left := 400 - v.Root().ForEntries()
	for n, want := range map[int]string{1: fmt.Sprint(min(5000, own+1000), left), 2: fmt.Sprint(min(5000, own+1000), left), 3: fmt.Sprint(own+1000, left)} {
		if limit, left := v.Room(key(n)); fmt.Sprint(limit, left) != want {
			t.Errorf("%d: %d of %d are left; want %s", n, left, limit, want)
		}
	}
	if !v.Pressed(key(2), .1) || v.Pressed(key(2), 1) {
		t.Error("the limits are pressed by more than they are, or by less")
	}
	if refused := v.Claim(key(2), 401, false); refused != v.Root() {
		t.Error("more was given than the root has room for")
	}
	one.SetLimit(601)
	if refused := v.Claim(key(2), 400, false); refused != one || one.Claimed() != 600 {
		t.Errorf("%d bytes are claimed", one.Claimed())
	}
}
